"""The approximants of functions of matrices, with the norms that they are good for."""

__all__ = ["LOG_NODES", "LOG_NORM", "PADE", "PADE_NORM"]

# The coefficients of the Pade approximant of degree 13 of exp, divided by the first, and how large
# a norm it is good for (Higham 2005).
PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
PADE_NORM = 5.371920351148152  # up to which degree 13 has float64's accuracy (Higham 2005)
# Nodes and weights of Gauss and Legendre on [0, 1]: the Pade approximant of degree 7 of
# log(1 + x) as a sum of x / (1 + node x), and how large a norm it is good for (Higham 2001).
LOG_NODES = (
    (0.025446043828620737, 0.06474248308443485), (0.12923440720030278, 0.13985269574463833),
    (0.2970774243113014, 0.19091502525255947), (0.5, 0.20897959183673470),
    (0.7029225756886985, 0.19091502525255947), (0.8707655927996972, 0.13985269574463833),
    (0.9745539561713793, 0.06474248308443485),
)  # fmt: skip
LOG_NORM = 0.25  # of x - 1: below it degree 7 has float64's accuracy
