"""Settings of all tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Two threads are many times slower than one on models this small, once anything else runs beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
