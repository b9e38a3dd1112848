"""NumPy float64 loops, written from the equations. Nothing here imports the package."""
