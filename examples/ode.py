"""How does the end of a motion depend on its beginning? Derivatives through an ODE solver.

A damped pendulum is solved with the classical Runge-Kutta method. The solver is plain array code,
so its derivatives are those of the numbers it computes: reverse mode for one output and many
inputs, forward mode for one input and many outputs, and both must agree.
"""

import pullback as pb


def velocity(state, damping):
    angle, speed = state
    return pb.stack([speed, -pb.sin(angle) - damping * speed])


def solve(state, damping, duration=5.0, steps=100):
    """The state after `duration`, by the Runge-Kutta method of order 4."""
    h = duration / steps
    for _ in range(steps):
        a = velocity(state, damping)
        b = velocity(state + h / 2 * a, damping)
        c = velocity(state + h / 2 * b, damping)
        d = velocity(state + h * c, damping)
        state = state + h / 6 * (a + 2 * b + 2 * c + d)
    return state


def main():
    start = pb.tensor([1.2, 0.0], dtype="float64")
    damping = pb.tensor(0.15, dtype="float64")

    def final_angle(state, damping):
        return solve(state, damping)[0]

    by_start, by_damping = pb.grad(final_angle, argnums=(0, 1))(start, damping)
    print(f"final angle          {final_angle(start, damping).item(): .6f}")
    print(f"d / d start angle    {by_start[0].item(): .6f}")
    print(f"d / d start speed    {by_start[1].item(): .6f}")
    print(f"d / d damping        {by_damping.item(): .6f}")

    # The same number by forward mode, in one pass along with the solution ...
    one = pb.ones_like(damping)
    _, tangent = pb.jvp(lambda c: solve(start, c), (damping,), (one,))
    assert abs(tangent[0].item() - by_damping.item()) < 1e-12

    # ... and by differences, which know nothing of derivatives.
    step = 1e-6
    ahead, behind = (final_angle(start, damping + s).item() for s in (step, -step))
    difference = (ahead - behind) / (2 * step)
    print(f"by differences       {difference: .6f}")
    assert abs(difference - by_damping.item()) < 1e-7

    # Second order: how fast does that sensitivity change with the damping itself?
    bend = pb.grad(pb.grad(lambda c: final_angle(start, c)))(damping)
    print(f"d2 / d damping2      {bend.item(): .6f}")


if __name__ == "__main__":
    main()
