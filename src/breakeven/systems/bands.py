"""Which figures agree with each published one. Fixed before anything was predicted."""

from __future__ import annotations

import math

from breakeven.systems.claims import Band
from breakeven.systems.published import RNN_STREAM_SPEEDS

# Judgement: the question names neither its GPU nor what feeds it.
RNN_STREAM_FACTOR = 1.5

# The post's depths are a factor of four apart in parameters: more than the depth before has, and as
# many as the one that follows.
DISC_MLP_BAND = Band(low=300_000, high=3_000_000)
RNN_STREAM_BANDS = {
    speed.batch_size: Band(
        low=speed.ratio / RNN_STREAM_FACTOR, high=speed.ratio * RNN_STREAM_FACTOR
    )
    for speed in RNN_STREAM_SPEEDS
}
# Around twice as fast.
WEIGHT_UPDATE_BAND = Band(low=1.5, high=3.0)
# "Orders of magnitude" says more than one; one is what is asked of ours.
NEURAL_ODE_BAND = Band(low=10.0, high=math.inf)
# Two products of which one has 33 times the work of the other: "the same time" is less than this.
MATVEC_BAND = Band(low=0.0, high=1.5)
# "Far slower": not within the spread of links and memories, which is a factor of 2 or 3.
DEVICE_COPY_BAND = Band(low=5.0, high=math.inf)
