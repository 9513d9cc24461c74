"""What an operator costs: its kernels, their time on a device, and the host's time to issue them."""

from breakeven.cost._kernel import Family as Family
from breakeven.cost._kernel import Kernel as Kernel
from breakeven.cost._kernel import Lowering as Lowering
