"""Samples, their statistics, and times with intervals."""

from breakeven.timing._estimate import Estimate as Estimate
from breakeven.timing._estimate import Source as Source
