"""Random data in the formats that public scripts read: they train on it as on the real ones."""

from public_data import _downloads as _downloads
from public_data import _graph_sets as _graph_sets
from public_data import _graphs as _graphs
from public_data import _hub as _hub
from public_data import _images as _images
from public_data import _masks as _masks
from public_data import _modules as _modules
from public_data import _tensors as _tensors
from public_data import _text as _text
from public_data import _weights as _weights
from public_data._registry import KINDS as KINDS
from public_data._registry import fake as fake
