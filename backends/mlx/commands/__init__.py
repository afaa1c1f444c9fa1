"""The part of this backend that serves commands and conversions; no call of the layer needs it."""
