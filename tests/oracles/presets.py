"""Published perturbation protocols written out: one image, one step, one pixel at a time, on what the papers say.

``f`` takes a picture ``[C, H, W]`` and returns logits ``[classes]``, in float64; ``c`` is the explained class, and
``order`` lists pixels (or patches), most relevant first. Nothing here knows the package.
"""

from __future__ import annotations

import math

import numpy as np


def probability(f, x, c):
    scores = f(x)
    powers = [math.exp(s - max(scores)) for s in scores]
    return powers[c] / sum(powers)


def hit(f, x, c):
    scores = list(f(x))
    return float(all(scores[c] > s for i, s in enumerate(scores) if i != c))


def backwards(values):
    """`argsort` read backwards: highest first, the last of equal values first."""
    return [i for _, i in sorted(((v, i) for i, v in enumerate(values)), reverse=True)]


def bilinear(small, height, width):
    """Centres of cells are half a cell from the border; outside, the border goes on."""
    big = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            v = min(max((y + 0.5) * small.shape[0] / height - 0.5, 0), small.shape[0] - 1)
            u = min(max((x + 0.5) * small.shape[1] / width - 0.5, 0), small.shape[1] - 1)
            top, left = math.floor(v), math.floor(u)
            low, right = min(top + 1, small.shape[0] - 1), min(left + 1, small.shape[1] - 1)
            upper = small[top, left] * (1 - u + left) + small[top, right] * (u - left)
            lower = small[low, left] * (1 - u + left) + small[low, right] * (u - left)
            big[y, x] = upper * (1 - v + top) + lower * (v - top)
    return big


def nearest(small, height, width):
    rows = [y * small.shape[0] // height for y in range(height)]
    return np.array([[small[y, x * small.shape[1] // width] for x in range(width)] for y in rows])


def blurred(x, kernel=11, sigma=5.0):
    """A Gaussian over a window of 11 x 11, of whose weights only those inside the picture count."""
    out, reach = np.zeros_like(x), kernel // 2
    for row in range(x.shape[1]):
        for column in range(x.shape[2]):
            total, weights = np.zeros(len(x)), 0.0
            for dy in range(-reach, reach + 1):
                for dx in range(-reach, reach + 1):
                    if 0 <= row + dy < x.shape[1] and 0 <= column + dx < x.shape[2]:
                        w = math.exp(-(dy * dy + dx * dx) / (2 * sigma**2))
                        total, weights = total + w * x[:, row + dy, column + dx], weights + w
            out[:, row, column] = total / weights
    return out


def swapped(x, other, pixels):
    """The picture with some pixels of another one, all channels at once."""
    y = x.copy().reshape(len(x), -1)
    for p in pixels:
        y[:, p] = other.reshape(len(x), -1)[:, p]
    return y.reshape(x.shape)


def trapezoids(x, y):
    return sum((x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(x) - 1))


def rise(f, x, heat, c):
    """Start at one picture, overwrite a row's worth of pixels by the other, score, repeat until none is left."""
    _, height, width = x.shape
    order, found = backwards(bilinear(heat, height, width).ravel()), {}
    for name, start, end in (("deletion", x, np.zeros_like(x)), ("insertion", blurred(x), x)):
        now, scores = start.copy(), []
        for step in range(height + 1):
            scores.append(probability(f, now, c))
            now = swapped(now, end, order[step * width : (step + 1) * width])
        found[name] = (sum(scores) - scores[0] / 2 - scores[-1] / 2) / (len(scores) - 1)
    return found


def tis(f, x, heat, label):
    """As many points as rows, none for the picture as it is, the blurred picture in both games."""
    _, height, width = x.shape
    order, found = backwards(bilinear(heat, height, width).ravel()), {}
    blur = blurred(x)
    for name, start, end in (("deletion", x, blur), ("insertion", blur, x)):
        scores = [probability(f, swapped(start, end, order[: (s + 1) * width]), label) for s in range(height)]
        found[name] = (sum(scores) - scores[0] / 2 - scores[-1] / 2) / (len(scores) - 1)
    return found


def mutex(f, x, heat, c):
    _, height, width = x.shape
    order = backwards(nearest(heat, height, width).ravel())
    percent = [1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    black, gone, shown = np.zeros_like(x), [], []
    for p in percent:
        top = order[: p * height * width // 100]
        gone.append(probability(f, swapped(x, black, top), c))
        shown.append(probability(f, swapped(black, x, top), c))
    share = [p / 100 for p in percent]
    found = {"deletion": trapezoids([0.0, *share], [0.0, *gone]), "insertion": trapezoids(share, shown)}
    return {**found, "insertion - deletion": found["insertion"] - found["deletion"]}


def chefer(f, x, heat, c, black):
    _, height, width = x.shape
    order = backwards(bilinear(heat, height, width).ravel())
    found, steps = {}, [k / 10 for k in range(1, 10)]
    for name, sequence in (("positive", order), ("negative", order[::-1])):
        hits = [hit(f, swapped(x, black, sequence[: int(height * width * q)]), c) for q in steps]
        found[name] = trapezoids(steps, hits)
    return found


def libragrad(without, patches, values, c):
    """`without` takes a list of patches and returns the logits of the sequence that lacks them."""
    order = backwards(values)
    hits, drops = [], []
    whole = probability(without, [], c)
    for percent in range(10, 100, 10):
        gone = order[: round(percent * patches / 100)]
        hits.append(hit(without, gone, c))
        drops.append(whole - probability(without, gone, c))
    accuracy = sum(hits) / 9
    return {"accuracy": accuracy, "100 - accuracy": 100 - 100 * accuracy, "aopc": sum(drops) / 9}


def abpc(f, x, heat, c):
    _, height, width = x.shape
    order, mean = backwards(bilinear(heat, height, width).ravel()), np.zeros_like(x)
    numbers = [round(k * height * width / 10) for k in range(11)]
    morf = [probability(f, swapped(x, mean, order[:n]), c) for n in numbers]
    lerf = [probability(f, swapped(x, mean, order[::-1][:n]), c) for n in numbers]
    between = [b - a for a, b in zip(morf, lerf, strict=True)]
    share = [k / 10 for k in range(11)]
    return {name: trapezoids(share, y) for name, y in (("morf", morf), ("lerf", lerf), ("abpc", between))}


def srg(f, x, values, grid, c):
    """One patch a step (a grid has fewer than 100), mean of the data set, logit."""
    _, height, width = x.shape
    mean = np.zeros_like(x)
    inside = [[] for _ in range(grid[0] * grid[1])]
    for y in range(height):
        for u in range(width):
            inside[(y * grid[0] // height) * grid[1] + u * grid[1] // width].append(y * width + u)
    order, found = backwards(values), {}
    for name, sequence in (("mif", order), ("lif", order[::-1])):
        now, scores = x.copy(), [f(x)[c]]
        for patch in sequence:
            now = swapped(now, mean, inside[patch])
            scores.append(f(now)[c])
        found[name] = trapezoids([k / len(order) for k in range(len(scores))], scores)
    return {**found, "srg": found["lif"] - found["mif"]}


def imputed(x, gone, grain):
    """Gone pixels are the weighted mean of the neighbours that exist, all at once, plus noise."""
    channels, height, width = x.shape
    gone = sorted(gone)
    A, b = np.eye(len(gone)), np.zeros((len(gone), channels))
    for i, p in enumerate(gone):
        around = []
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                if (dy, dx) != (0, 0) and 0 <= p // width + dy < height and 0 <= p % width + dx < width:
                    around.append(((p // width + dy) * width + p % width + dx, 1 / 6 if 0 in (dy, dx) else 1 / 12))
        total = sum(w for _, w in around)
        for q, w in around:
            if q in gone:
                A[i, gone.index(q)] -= w / total
            else:
                b[i] += w / total * x.reshape(channels, -1)[:, q]
    y = x.copy().reshape(channels, -1)
    y[:, gone] = np.linalg.solve(A, b).T + 0.01 * grain.reshape(channels, -1)[:, gone]
    return y.reshape(x.shape)


def road(f, x, heat, c, grain):
    _, height, width = x.shape
    order = backwards(bilinear(heat, height, width).ravel())
    numbers = [round(k * height * width / 10) for k in range(1, 10)]
    morf = [probability(f, imputed(x, order[:n], grain), c) for n in numbers]
    lerf = [probability(f, imputed(x, order[::-1][:n], grain), c) for n in numbers]
    combined = [(b - a) / 2 for a, b in zip(morf, lerf, strict=True)]
    return {"morf": sum(morf) / 9, "lerf": sum(lerf) / 9, "combined": sum(combined) / 9}
