from .sampler import TaylorGLOCmaEsSampler

__all__ = ["TaylorGLOCmaEsSampler"]
