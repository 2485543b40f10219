"""Gradients of reading and writing at indices: a table of vectors learned from pairs of words.

Reading rows, `table[i]`, has the gradient "add into those rows". Frequent words are read many times
per step; their contributions are added in a fixed order, so that every run has the same bits.
"""

import pullback as pb

TEXT = """
the cat sits on the mat the dog sits on the rug the cat sees the dog
a bird sings in the tree a bird sits in the tree the dog sees a bird
"""
WORDS = sorted(set(TEXT.split()))
DIMENSIONS = 4


def pairs():
    """The positions of all neighbouring words, in the list of words."""
    ids = pb.tensor([WORDS.index(w) for w in TEXT.split()])
    return ids[:-1], ids[1:]


def loss(tables, left, right):
    """How surprising each right neighbour is, given the left one."""
    rows = tables["left"][left]  # gather: duplicates are welcome
    scores = rows @ tables["right"].T
    chosen = pb.take_along_axis(scores, right[:, None], axis=1)[:, 0]
    return pb.mean(pb.logsumexp(scores, axis=1) - chosen)


def fit(steps=150, rate=1.0):
    left, right = pairs()
    keys = pb.random.split(pb.random.key(0), 2)
    shape = (len(WORDS), DIMENSIONS)
    tables = {"left": pb.random.normal(keys[0], shape), "right": pb.random.normal(keys[1], shape)}
    slope = pb.value_and_grad(loss)
    for step in range(steps):
        value, gradient = slope(tables, left, right)
        tables = pb.map_tree(lambda t, g: t - rate * g, tables, gradient)
        if step % 50 == 0 or step == steps - 1:
            print(f"{step:4d}  loss {value.item():.4f}")
    return tables


def main():
    # The gradient of a gather is a scatter_add of the cotangent: by hand and by the library.
    left, _ = pairs()
    table = pb.random.normal(pb.random.key(1), (len(WORDS), DIMENSIONS))
    weights = pb.random.normal(pb.random.key(2), (len(left), DIMENSIONS))
    by_library = pb.grad(lambda t: pb.sum(t[left] * weights))(table)
    by_hand = pb.scatter_add(pb.zeros_like(table), left, weights)
    assert pb.all(by_library == by_hand)

    first, second = fit(), fit()
    assert first["left"].numpy().tobytes() == second["left"].numpy().tobytes()
    print("two runs, the same bits")
    scores = first["left"][WORDS.index("sits")] @ first["right"].T
    print("after 'sits' comes", repr(WORDS[int(scores.argmax())]))


if __name__ == "__main__":
    main()
