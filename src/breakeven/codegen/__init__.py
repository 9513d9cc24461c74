"""C code generated for whole training steps on the CPU."""

from breakeven.codegen.generated import Gathered as Gathered
from breakeven.codegen.generated import Generated as Generated
from breakeven.codegen.generated import Plan as Plan
from breakeven.codegen.program import UnsupportedError as UnsupportedError
from breakeven.codegen.toolchain import CompilerError as CompilerError
from breakeven.codegen.toolchain import load as load
from breakeven.codegen.tracing import without_onednn as without_onednn
