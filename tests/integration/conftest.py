from trunkline.testing.patience import impatient, patience

__all__ = ["impatient", "patience"]
