"""bfloat16 and float8_e4m3 for NumPy, as float32 with a mark: the shim rounds marked arrays where they enter a kernel."""
import numpy as np

bfloat16 = np.dtype(np.float32, metadata={"nki": "bfloat16"})
float8_e4m3 = np.dtype(np.float32, metadata={"nki": "float8_e4m3"})
