"""The rules across settings, and the sizes of an iteration that follow from them."""

from ddppo.config.rules.all import validate
from ddppo.config.rules.dist.restarts import check_restarts
from ddppo.config.rules.shapes import batch_shape, layout

__all__ = ["batch_shape", "check_restarts", "layout", "validate"]
