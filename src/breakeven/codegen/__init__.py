"""C code generated for whole training steps on the CPU."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

# Importing PyTorch takes a second, which who only asks for the compiler does without.
if TYPE_CHECKING:
    from breakeven.codegen.generated import Gathered as Gathered
    from breakeven.codegen.generated import Generated as Generated
    from breakeven.codegen.generated import Plan as Plan
    from breakeven.codegen.program import UnsupportedError as UnsupportedError
    from breakeven.codegen.toolchain import CompilerError as CompilerError
    from breakeven.codegen.toolchain import find_compiler as find_compiler
    from breakeven.codegen.toolchain import kept_steps as kept_steps
    from breakeven.codegen.toolchain import load as load
    from breakeven.codegen.tracing import without_onednn as without_onednn

__getattr__ = exported_on_use(__name__)
