"""A Kalman filter as one scan; how noisy motion and measurement are is learned through it."""

import pullback as pb
from pullback.display import drawing

STEP = 0.1  # seconds between measurements
MOVE = pb.tensor([[1.0, STEP], [0.0, 1.0]], dtype="float64")  # of a state (place, speed)
PUSH = pb.tensor([[STEP**3 / 3, STEP**2 / 2], [STEP**2 / 2, STEP]], dtype="float64")
SEE = pb.tensor([1.0, 0.0], dtype="float64")


def track(p, measured):
    """Places, their variances, and how surprising the measurements are."""
    push, noise = pb.exp(p["push"]), pb.exp(p["noise"])

    def step(carry, z):
        mean, spread = carry
        mean, spread = MOVE @ mean, MOVE @ spread @ MOVE.T + push * PUSH
        error, variance = z - SEE @ mean, SEE @ spread @ SEE + noise
        gain = spread @ SEE / variance
        mean, spread = mean + gain * error, spread - variance * pb.outer(gain, gain)
        return (mean, spread), (mean[0], spread[0, 0], error**2 / variance + pb.log(variance))

    start = pb.zeros(2, dtype="float64"), 10 * pb.eye(2, dtype="float64")
    return pb.scan(step, start, measured)[1]


def main(quick=False):
    n = 60 if quick else 200
    k1, k2 = pb.random.split(pb.random.key(0))
    kicks = pb.random.normal(k1, (n,), scale=STEP**0.5, dtype="float64")
    place = pb.cumulative_sum(pb.cumulative_sum(kicks) * STEP)
    measured = place + pb.random.normal(k2, (n,), scale=1.5, dtype="float64")

    def loss(p):
        return pb.mean(track(p, measured)[2])

    start = {"push": pb.tensor(-2.0, dtype="float64"), "noise": pb.tensor(2.0, dtype="float64")}
    opt = pb.optim.LBFGS()
    p, state = pb.jit(lambda p: opt.minimize(loss, p))(start)
    found, variance, _ = track(p, measured)

    def error(x):
        return pb.sqrt(pb.mean((x - place) ** 2)).item()

    print(f"{state['step'].item()} steps, noise {pb.exp(p['noise'] / 2).item():.2f} (true: 1.50)")
    print(f"error of a measurement {error(measured):.2f}, of the filter {error(found):.2f}")
    assert error(found) < 0.7 * error(measured)

    t, deviation = [i * STEP for i in range(n)], pb.sqrt(variance)
    s = drawing.Series
    series = [
        s("measured", t, measured.tolist(), "b points"),
        s("true", t, place.tolist(), "c dashed"),
        s("filtered", t, found.tolist(), "a"),
        s("two standard deviations", t, (found + 2 * deviation).tolist(), "a faint"),
        s("", t, (found - 2 * deviation).tolist(), "a faint"),
    ]
    return drawing.curves(series, "time in s", "place in m")


if __name__ == "__main__":
    main()
