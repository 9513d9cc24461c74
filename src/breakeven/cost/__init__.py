"""What an operator costs: its kernels, their time on a device, the host's time to issue it."""

from breakeven.cost._arithmetic import sustained_fraction as sustained_fraction
from breakeven.cost._efficiency import TABLE_VERSION as TABLE_VERSION
from breakeven.cost._efficiency import Arithmetic as Arithmetic
from breakeven.cost._efficiency import DeviceEfficiency as DeviceEfficiency
from breakeven.cost._efficiency import EfficiencyTable as EfficiencyTable
from breakeven.cost._efficiency import FamilyEfficiency as FamilyEfficiency
from breakeven.cost._efficiency import HeldOutError as HeldOutError
from breakeven.cost._efficiency import load_efficiencies as load_efficiencies
from breakeven.cost._host_cost import host_op_ns as host_op_ns
from breakeven.cost._host_cost import reference_host as reference_host
from breakeven.cost._kernel import Family as Family
from breakeven.cost._kernel import Kernel as Kernel
from breakeven.cost._kernel import Lowering as Lowering
from breakeven.cost._kernel_times import KernelGroup as KernelGroup
from breakeven.cost._kernel_times import KernelTimes as KernelTimes
from breakeven.cost._kernel_times import arithmetic_of as arithmetic_of
from breakeven.cost._kernel_times import group_key as group_key
from breakeven.cost._kernel_times import kernel_times as kernel_times
from breakeven.cost._launch import LaunchCosts as LaunchCosts
from breakeven.cost._launch import copy_ns as copy_ns
from breakeven.cost._launch import launch_costs as launch_costs
from breakeven.cost._lowering import lower as lower
from breakeven.cost._roofline import EfficiencyArrays as EfficiencyArrays
from breakeven.cost._teaching import calibrated_variant as calibrated_variant
from breakeven.cost._teaching import is_taught_by_other_lines as is_taught_by_other_lines
from breakeven.cost._teaching import taught_efficiency as taught_efficiency
