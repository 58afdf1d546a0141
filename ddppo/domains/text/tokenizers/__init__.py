"""Text as tokens: what an environment prints and a policy types, in the numbers that a model takes (docs/text.md)."""

from ddppo.domains.text.tokenizers.bytes import BytesTokenizer
from ddppo.domains.text.tokenizers.contract import Dialogue, Tokenizer
from ddppo.domains.text.tokenizers.make import make_tokenizer

__all__ = ["BytesTokenizer", "Dialogue", "Tokenizer", "make_tokenizer"]
