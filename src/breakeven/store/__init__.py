"""Reports, calibrations and measurements on disk."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.store.cache import CALIBRATIONS as CALIBRATIONS
    from breakeven.store.cache import TRACES as TRACES
    from breakeven.store.cache import RunKey as RunKey
    from breakeven.store.cache import read_host as read_host
    from breakeven.store.cache import read_run as read_run
    from breakeven.store.cache import write_host as write_host
    from breakeven.store.cache import write_run as write_run
    from breakeven.store.machine import MachineKey as MachineKey
    from breakeven.store.machine import code_digest as code_digest
    from breakeven.store.machine import installed_version as installed_version
    from breakeven.store.machine import machine_key as machine_key
    from breakeven.store.machine import machine_lock as machine_lock
    from breakeven.store.machine import this_machine as this_machine
    from breakeven.store.price_lists import refresh_prices as refresh_prices
    from breakeven.store.report_file import ensure_writable as ensure_writable
    from breakeven.store.report_file import lined_json as lined_json
    from breakeven.store.report_file import write_document as write_document
    from breakeven.store.tuned_file import TUNED_FILE_NAME as TUNED_FILE_NAME
    from breakeven.store.tuned_file import Tuned as Tuned
    from breakeven.store.tuned_file import read_tuned as read_tuned
    from breakeven.store.tuned_file import tuned_of as tuned_of
    from breakeven.store.tuned_file import write_tuned as write_tuned

__getattr__ = exported_on_use(__name__)
