"""Text as tokens: what an environment prints and a policy types, in the numbers that a model takes (docs/text.md)."""

from ddppo.text.bytes import BytesTokenizer
from ddppo.text.contract import Dialogue, Tokenizer
from ddppo.text.make import make_tokenizer

__all__ = ["BytesTokenizer", "Dialogue", "Tokenizer", "make_tokenizer"]
