"""Mini GPT, Number by Number: the package that the chapters import.

Three computations of the same transformer block, written apart so that they can check one another:

    scalar    plain Python lists and loops
    array     NumPy
    model     torch, on whatever device is there, and the whole Mini GPT
"""

__version__ = "0.1.0"
