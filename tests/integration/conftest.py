from tests.support.patience import impatient, patience

__all__ = ["impatient", "patience"]
