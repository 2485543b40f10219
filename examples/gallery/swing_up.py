"""A pole on a cart is swung up: the gradient of where it ends goes through the whole simulation.

The cart can only be pushed from side to side, and not hard enough to lift the pole at once. Every
push is a parameter; 200 steps of the equations of motion are one `pb.scan`.
"""

import pullback as pb
from pullback.display import drawing

CART, POLE, LENGTH, GRAVITY = 1.0, 0.3, 0.5, 9.81
STEPS, SECONDS, HARDEST = 200, 3.0, 12.0


def motion(state, push):
    """The change of place, angle (0 hangs down) and their speeds, in one second."""
    _, angle, speed, turning = state
    sine, cosine = pb.sin(angle), pb.cos(angle)
    pull = push + POLE * sine * (LENGTH * turning**2 + GRAVITY * cosine)
    slide = pull / (CART + POLE * sine**2)
    swing = -(slide * cosine + GRAVITY * sine) / LENGTH
    return pb.stack([speed, turning, slide, swing])


def simulate(pushes):
    """All states, by the classical Runge-Kutta method."""
    dt = SECONDS / STEPS

    def step(state, push):
        k1 = motion(state, push)
        k2 = motion(state + dt / 2 * k1, push)
        k3 = motion(state + dt / 2 * k2, push)
        k4 = motion(state + dt * k3, push)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return state, state

    return pb.scan(step, pb.zeros(4), HARDEST * pb.tanh(pushes))[1]


def loss(pushes):
    """How far from upright and at rest the last half second is, and what the pushes cost."""
    states = simulate(pushes)
    place, angle, speed, turning = states[-STEPS // 6 :].T
    off = (1 + pb.cos(angle)) * 10 + place**2 + 0.1 * (speed**2 + turning**2)
    return pb.mean(off) + 1e-3 * pb.mean((HARDEST * pb.tanh(pushes)) ** 2)


def main(quick=False):
    pushes = 0.3 * pb.sin(pb.linspace(0, 4 * pb.pi, STEPS))
    opt = pb.optim.LBFGS(max_iter=60 if quick else 400)
    pushes, state = pb.jit(lambda p: opt.minimize(loss, p))(pushes)
    states = simulate(pushes)
    print(f"{state['step'].item()} steps of L-BFGS through {STEPS} steps of motion")
    print(f"at the end {180 / pb.pi * states[-1, 1].item():.1f} degrees from hanging down")
    assert loss(pushes) < (5.0 if quick else 0.5)

    time = (pb.arange(STEPS) * (SECONDS / STEPS)).tolist()
    curves = [
        drawing.Series("angle of the pole", time, states[:, 1].tolist(), "a"),
        drawing.Series("place of the cart", time, states[:, 0].tolist(), "b"),
        drawing.Series("push / 10", time, (HARDEST / 10 * pb.tanh(pushes)).tolist(), "c dashed"),
    ]
    return drawing.curves(curves, "seconds", "radians, metres, newtons")


if __name__ == "__main__":
    main()
