"""A transformer learns a nursery rhyme character by character, and then goes on by itself."""

import pullback as pb
from pullback.display import drawing

PARTS = """the house that Jack built/the malt that lay in/the rat that ate/the cat that killed
the dog that worried/the cow with the crumpled horn that tossed/the maiden all forlorn that milked
the man all tattered and torn that kissed""".replace("\n", "/").split("/")
TEXT = "".join(f"this is {' '.join(PARTS[i::-1])}.\n" for i in range(len(PARTS)))
SYMBOLS = sorted(set(TEXT))
LENGTH = 64  # characters that the model sees at once


class Model(pb.Module):
    def __init__(self, key, width=64, depth=2):
        k1, k2, k3, *keys = pb.random.split(key, 3 + depth)
        self.symbols = pb.nn.Embedding(len(SYMBOLS), width, key=k1)
        self.places = pb.nn.Embedding(LENGTH, width, key=k2)
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        layer = pb.nn.TransformerEncoderLayer
        self.layers = [layer(width, 4, 4 * width, **options, key=k) for k in keys]
        self.out = pb.nn.Linear(width, len(SYMBOLS), key=k3)

    def __call__(self, ids):
        x = self.symbols(ids) + self.places(pb.arange(ids.shape[-1]))
        for layer in self.layers:
            x = layer(x, is_causal=True)
        return self.out(x)


def loss(model, rows):
    scores = model(rows[:, :-1]).reshape(-1, len(SYMBOLS))
    return pb.nn.cross_entropy(scores, rows[:, 1:].reshape(-1))


def main(quick=False):
    ids = pb.tensor([SYMBOLS.index(c) for c in TEXT])
    rows = ids[pb.arange(len(ids) - LENGTH)[:, None] + pb.arange(LENGTH + 1)]
    model = Model(pb.random.key(0), *((32, 1) if quick else ()))
    opt = pb.optim.AdamW(lr=0.003)

    @pb.jit
    def step(model, state, rows):
        value, gradient = pb.value_and_grad(loss)(model, rows)
        model, state = opt.step(model, gradient, state)
        return model, state, value

    state, values = opt.init(model), []
    for batch in pb.train.batches(rows, 16, key=pb.random.key(1), epochs=3 if quick else 10):
        model, state, value = step(model, state, batch)
        values.append(value.item())

    said, scores = ids[:LENGTH], pb.jit(model)
    for key in pb.random.split(pb.random.key(2), 20 if quick else 400):
        chances = scores(said[-LENGTH:][None])[0, -1]
        following = pb.argmax(2 * chances + pb.random.gumbel(key, chances.shape), keepdims=True)
        said = pb.concat([said, following])
    print(f"{len(values)} steps, loss {values[-1]:.3f}. Given {LENGTH} characters, it goes on:")
    print("".join(SYMBOLS[i] for i in said[LENGTH:].tolist()))
    assert values[-1] < (1.5 if quick else 0.2)
    return drawing.curves([drawing.Series("", range(len(values)), values)], "step", "loss", True)


if __name__ == "__main__":
    main()
