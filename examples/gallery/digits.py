"""A convolutional network reads handwritten digits.

The model is a class; the step, derivatives and optimiser included, is one compiled function. The
images (8 x 8 pixels, UCI, 1998) come with scikit-learn.
"""

from sklearn.datasets import load_digits

import pullback as pb
from pullback.display import drawing


class Net(pb.Module):
    def __init__(self, key):
        k1, k2, k3 = pb.random.split(key, 3)
        self.conv1 = pb.nn.Conv2d(1, 16, 3, padding=1, key=k1)
        self.conv2 = pb.nn.Conv2d(16, 32, 3, padding=1, key=k2)
        self.out = pb.nn.Linear(32 * 2 * 2, 10, key=k3)

    def __call__(self, x):
        x = pb.nn.max_pool2d(pb.nn.relu(self.conv1(x)), 2)
        x = pb.nn.max_pool2d(pb.nn.relu(self.conv2(x)), 2)
        return self.out(x.reshape(len(x), -1))


def loss(net, x, y):
    return pb.nn.cross_entropy(net(x), y)


def main(quick=False):
    values, labels = load_digits(return_X_y=True)
    x, y = pb.tensor(values.reshape(-1, 1, 8, 8) / 16, dtype="float32"), pb.tensor(labels)
    order = pb.random.permutation(pb.random.key(0), len(x))
    tested, trained = order[:360], order[360:]

    net = Net(pb.random.key(1))
    opt = pb.optim.Adam(lr=0.003)

    @pb.jit
    def step(net, state, x, y):
        value, gradient = pb.value_and_grad(loss)(net, x, y)
        net, state = opt.step(net, gradient, state)
        return net, state, value

    state, values = opt.init(net), []
    epochs = 4 if quick else 20
    data = (x[trained], y[trained])
    for batch in pb.train.batches(data, 64, key=pb.random.key(2), epochs=epochs):
        net, state, value = step(net, state, *batch)
        values.append(value.item())

    scores = net(x[tested])
    right = scores.argmax(axis=1) == y[tested]
    print(f"{len(values)} steps, {right.sum().item()} of {len(right)} digits right")
    assert pb.mean(right.astype("float32")) > (0.9 if quick else 0.97)

    shown = pb.argsort(right)[:28].tolist()  # what was misread comes first
    pictures = [drawing.image(drawing.ink(x[tested][i, 0].numpy()), "", "ink") for i in shown]
    captions = [str(scores[i].argmax().item()) for i in shown]
    return drawing.tiles(pictures, captions, [not right[i] for i in shown])


if __name__ == "__main__":
    main()
