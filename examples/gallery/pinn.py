"""A network solves a differential equation: it is trained on the equation itself, not on data.

On the square, u_xx + u_yy = -2 pi^2 sin(pi x) sin(pi y), and u = 0 on the border, which a factor in
front of the network grants. The loss holds second derivatives by the place, and is differentiated
once more by the weights.
"""

import pullback as pb
from pullback.display import drawing


class Solution(pb.Module):
    def __init__(self, key, width=24):
        k1, k2, k3 = pb.random.split(key, 3)
        self.layers = pb.nn.Sequential(
            pb.nn.Linear(2, width, key=k1),
            pb.nn.Tanh(),
            pb.nn.Linear(width, width, key=k2),
            pb.nn.Tanh(),
            pb.nn.Linear(width, 1, key=k3),
        )

    def __call__(self, point):
        border = pb.prod(1 - point**2)
        return border * self.layers(point)[0]


def exact(points):
    return pb.prod(pb.sin(pb.pi * points), axis=-1)


def loss(u, points):
    residual = pb.vmap(pb.laplacian(u))(points) + 2 * pb.pi**2 * exact(points)
    return pb.mean(residual**2)


def grid(n):
    side = pb.linspace(-1, 1, n)
    return pb.stack(pb.meshgrid(side, side), axis=-1)


def main(quick=False):
    points = grid(12 if quick else 24)[1:-1, 1:-1].reshape(-1, 2)
    u = Solution(pb.random.key(0))
    opt = pb.optim.LBFGS(max_iter=60 if quick else 800)
    u, state = pb.jit(lambda u: opt.minimize(lambda u: loss(u, points), u))(u)

    places = grid(64)
    found = pb.vmap(pb.vmap(u))(places)
    error = found - exact(places)
    print(f"{state['step'].item()} steps of L-BFGS, largest error {pb.abs(error).max().item():.1e}")
    assert pb.abs(error).max() < (0.2 if quick else 5e-3)

    pictures = [drawing.heat_map(found.numpy(), "u"), drawing.heat_map(error.numpy(), "error")]
    return drawing.tiles(pictures, ["the solution", "its error"], size="pair")


if __name__ == "__main__":
    main()
