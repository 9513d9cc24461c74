from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from breakeven.capture.record.device_map import DEVICE, HOST, DeviceMap


@pytest.fixture
def devices() -> DeviceMap:
    return DeviceMap()


def on_device(devices: DeviceMap, *shape: int) -> torch.Tensor:
    tensor = torch.zeros(*shape)
    devices.place(tensor, DEVICE)
    return tensor


def test_tensor_of_which_nothing_was_said_is_on_the_host(devices: DeviceMap) -> None:
    tensor = torch.zeros(3)
    assert devices.device_of(tensor) == HOST
    assert not devices.is_known(tensor)
    assert devices.device_bytes == 0


@pytest.mark.parametrize(
    "alias",
    [
        lambda tensor: tensor.view(6),
        lambda tensor: tensor.t()[1:],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.data,
        lambda tensor: tensor.add_(1),
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: tensor.expand(5, 2, 3),
        lambda tensor: tensor.view(torch.int32),
    ],
    ids=["view", "slice", "detach", "data", "in place", "parameter", "expand", "other dtype"],
)
def test_what_shares_the_memory_shares_the_device(alias, devices: DeviceMap) -> None:
    tensor = on_device(devices, 2, 3)
    other = alias(tensor)
    assert devices.device_of(other) == DEVICE
    assert devices.number_of(other) == devices.number_of(tensor)
    assert devices.device_bytes == 512
    devices.place(other, HOST)
    assert devices.device_of(tensor) == HOST
    assert devices.device_bytes == 0


@pytest.mark.parametrize("duplicate", [torch.clone, copy.deepcopy, lambda tensor: tensor + 1])
def test_other_memory_is_another_entry(duplicate, devices: DeviceMap) -> None:
    tensor = on_device(devices, 4)
    other = duplicate(tensor)
    assert devices.device_of(other) == HOST
    assert devices.number_of(other) != devices.number_of(tensor)


def test_assigned_data_takes_its_device_along(devices: DeviceMap) -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.data = on_device(devices, 4)
    assert devices.device_of(parameter) == DEVICE


def test_memory_is_counted_in_blocks_of_the_allocator(devices: DeviceMap) -> None:
    # 4, 512, 516 and 4,000 bytes take 1, 1, 2 and 8 blocks of 512; none takes none.
    kept = [on_device(devices, count) for count in (1, 128, 129, 1_000, 0)]
    assert devices.device_bytes == 512 * (1 + 1 + 2 + 8)
    assert len(kept) == 5


def test_view_counts_the_whole_block_once(devices: DeviceMap) -> None:
    whole = torch.zeros(256)
    devices.place(whole[:1], DEVICE)
    devices.place(whole[128:], DEVICE)
    assert devices.device_bytes == 1_024


def test_entry_vanishes_with_the_last_tensor_of_its_memory(devices: DeviceMap) -> None:
    tensor = on_device(devices, 128)
    view = tensor[:1]
    del tensor
    assert devices.device_bytes == 512
    del view
    assert devices.device_bytes == 0


def test_memory_of_the_dead_is_not_taken_for_that_of_the_living(devices: DeviceMap) -> None:
    for _ in range(200):
        assert devices.device_of(on_device(devices, 128)[:1]) == DEVICE
        fresh = torch.zeros(128)
        assert not devices.is_known(fresh)
    assert devices.device_bytes == 0


def test_autograd_graph_keeps_its_memory_alive(devices: DeviceMap) -> None:
    leaf = torch.zeros(128, requires_grad=True)
    inner = leaf.exp()
    devices.place(inner, DEVICE)
    result = inner.sum()
    del inner
    assert devices.device_bytes == 512  # saved for the backward of exp
    result.backward()
    del result
    gc.collect()
    assert devices.device_bytes == 0


def test_peak_is_the_most_at_once_since_it_was_started(devices: DeviceMap) -> None:
    first = on_device(devices, 128)
    second = on_device(devices, 256)
    assert devices.peak_device_bytes == 1_536
    del second
    third = on_device(devices, 128)
    assert (devices.device_bytes, devices.peak_device_bytes) == (1_024, 1_536)
    devices.start_peak()
    assert devices.peak_device_bytes == 1_024
    devices.place(third, HOST)
    fourth = on_device(devices, 1)
    assert (devices.device_bytes, devices.peak_device_bytes) == (1_024, 1_024)
    assert devices.device_of(first) == devices.device_of(fourth) == DEVICE


def test_numbers_are_never_used_twice(devices: DeviceMap) -> None:
    numbers = [devices.number_of(torch.zeros(1)) for _ in range(50)]
    assert len(set(numbers)) == 50


def test_pinned_memory_is_that_of_its_views_and_no_other(devices: DeviceMap) -> None:
    tensor = torch.zeros(8)
    devices.pin(tensor)
    assert devices.is_pinned(tensor[2:])
    assert not devices.is_pinned(tensor.clone())
    assert devices.device_of(tensor) == HOST


def test_sparse_tensor_is_where_its_values_are(devices: DeviceMap) -> None:
    sparse = torch.eye(3).to_sparse()
    devices.place(sparse, DEVICE)
    assert devices.device_of(sparse) == DEVICE


def test_map_that_moves_a_script_has_unknown_tensors_on_the_device() -> None:
    devices = DeviceMap(DEVICE)
    tensor = torch.zeros(128)
    assert devices.device_of(tensor) == DEVICE
    devices.number_of(tensor)
    assert devices.device_bytes == 512
    devices.place(tensor, HOST)
    assert devices.device_of(tensor) == HOST


def test_map_does_not_outlive_its_last_user() -> None:
    devices = DeviceMap()
    tensor = on_device(devices, 1)
    reference = weakref.ref(devices)
    del devices
    gc.collect()
    assert reference() is None
    assert tensor.numel() == 1


def test_loading_in_one_thread_is_nothing_to_another() -> None:
    devices = DeviceMap(DEVICE)
    with ThreadPoolExecutor(1) as pool:
        with devices.loading(), devices.loading():
            other = devices.loading()
            pool.submit(other.__enter__).result()
            assert pool.submit(lambda: devices.default).result() == HOST
        assert devices.default == DEVICE
        with devices.loading():
            pool.submit(other.__exit__, None, None, None).result()
            assert pool.submit(lambda: devices.default).result() == DEVICE
            assert devices.default == HOST
