"""The cost of a training: machines with prices, billed time, energy."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.money.energy import J_PER_KWH as J_PER_KWH
    from breakeven.money.energy import Activity as Activity
    from breakeven.money.energy import board_watts as board_watts
    from breakeven.money.energy import co2_kg as co2_kg
    from breakeven.money.energy import counted_watts as counted_watts
    from breakeven.money.energy import energy_kwh as energy_kwh
    from breakeven.money.energy import kernel_work as kernel_work
    from breakeven.money.interval import Interval as Interval
    from breakeven.money.machines import PRICES_VERSION as PRICES_VERSION
    from breakeven.money.machines import Machine as Machine
    from breakeven.money.machines import PriceFile as PriceFile
    from breakeven.money.machines import PriceSource as PriceSource
    from breakeven.money.machines import billed_usd as billed_usd
    from breakeven.money.machines import gpu_usd_per_hour as gpu_usd_per_hour
    from breakeven.money.machines import known_prices as known_prices
    from breakeven.money.machines import price_caveats as price_caveats
    from breakeven.money.machines import read_prices as read_prices
    from breakeven.money.machines import select_machines as select_machines
    from breakeven.money.machines import shipped_prices as shipped_prices
    from breakeven.money.machines import user_prices as user_prices

__getattr__ = exported_on_use(__name__)
