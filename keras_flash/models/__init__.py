"""Models made of the layers, and what works on whole models."""

from keras_flash.models.streaming import get_initial_state
from keras_flash.models.streaming import stream

__all__ = ["get_initial_state", "stream"]
