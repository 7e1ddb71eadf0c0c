"""Training: repeatable, resumable, with features that are never stale."""

import json
import time

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.models import images, relative_error, tiny
from tests.trace.test_safety import same, state
from xattr.datasets import digit_scenes, embedded_model
from xattr.heads import LayaHead, LayaModel, accuracy, cached_features, fit
from xattr.heads import training as fitting
from xattr.trace import InputError


def data(count=120, seed=0):
    """Two layers, of which the second alone knows the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    features = [torch.randn(count, 6, generator=generator) for _ in range(2)]
    features[1][torch.arange(count), labels] += 3
    return features, labels


def head(seed=0, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LayaHead([6, 6], 3, width=8, **options)


def weights(module):
    return {k: v.clone() for k, v in module.state_dict().items()}


def test_the_same_seed_gives_the_same_weights_and_no_generator_moves():
    one, other, third = head(layer_dropout=0.3), head(layer_dropout=0.3), head(layer_dropout=0.3)
    before = torch.get_rng_state()
    first = fit(one, data(), data(60, 1), epochs=4, batch_size=16, lr=0.01, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    second = fit(other, data(), data(60, 1), epochs=4, batch_size=16, lr=0.01, seed=5)
    assert first == second
    assert same(weights(one), weights(other))
    assert first.accuracy > 0.8
    fit(third, data(), data(60, 1), epochs=4, batch_size=16, lr=0.01, seed=6)
    assert not same(weights(one), weights(third))


def test_killed_and_started_again_it_gives_the_same(tmp_path, monkeypatch):
    whole, parts = head(layer_dropout=0.3), head(layer_dropout=0.3)
    arguments = {"epochs": 6, "batch_size": 16, "lr": 0.01, "seed": 3}
    wanted = fit(whole, data(), data(60, 1), **arguments)
    run_epoch = fitting._epoch

    def killed(module, made, train, batch_size, seed, epoch):
        if epoch == 3:
            raise KeyboardInterrupt
        return run_epoch(module, made, train, batch_size, seed, epoch)

    monkeypatch.setattr(fitting, "_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, data(), data(60, 1), checkpoint=tmp_path / "run.pt", **arguments)
    monkeypatch.setattr(fitting, "_epoch", run_epoch)
    again = head(layer_dropout=0.3)
    found = fit(again, data(), data(60, 1), checkpoint=tmp_path / "run.pt", **arguments)
    assert found == wanted
    assert same(weights(again), weights(whole))
    # A finished training is not run again, another one does not read its file.
    monkeypatch.setattr(fitting, "_epoch", killed)
    assert fit(head(layer_dropout=0.3), data(), data(60, 1), checkpoint=tmp_path / "run.pt", **arguments) == wanted
    for other, changed in ((head(1, layer_dropout=0.3), {}), (head(layer_dropout=0.3), {"seed": 4})):
        with pytest.raises(InputError, match="another training"):
            fit(other, data(), data(60, 1), checkpoint=tmp_path / "run.pt", **(arguments | changed))


def test_early_stopping_keeps_the_best_weights(monkeypatch):
    module, found = head(), iter([0.5, 0.7, 0.6, 0.7, 0.1])
    kept = []

    def scored(trained, *rest):
        kept.append(weights(trained))
        return next(found)

    monkeypatch.setattr(fitting, "accuracy", scored)
    result = fit(module, data(), data(60, 1), epochs=50, patience=3)
    assert result.accuracies == (0.5, 0.7, 0.6, 0.7, 0.1)
    assert (result.best_epoch, result.accuracy) == (1, 0.7)
    assert same(weights(module), kept[1])


def test_data_sets_and_pairs_are_the_same():
    features, labels = data()
    joined = torch.cat(features, 1)
    net = lambda: nn.Sequential(nn.Linear(12, 3))
    one, other = net(), net()
    other.load_state_dict(one.state_dict())
    pair, dataset = (joined, labels), TensorDataset(joined, labels)
    assert fit(one, pair, pair, epochs=2) == fit(other, dataset, dataset, epochs=2)
    assert same(weights(one), weights(other))


def test_a_head_on_the_embedded_vit_trains_in_seconds(tmp_path):
    """On frozen features: a head from scratch where the model's own is not used."""
    began = time.process_time()
    train, validation, test = (digit_scenes(*args) for args in (("train", 1500), ("tuning", 300), ("report", 300)))
    backbone = embedded_model("class-token")
    before = state(backbone)
    torch.manual_seed(0)
    model = LayaModel(backbone, 10, pool="cls", width=32)
    result = fit(
        model, (train.images, train.labels), (validation.images, validation.labels), epochs=15, cache=tmp_path, lr=3e-3
    )
    assert result.accuracy > 0.85
    assert accuracy(model, (test.images, test.labels)) > 0.85
    assert same(before, state(backbone))
    assert time.process_time() - began < 60


def test_cached_features_are_read_again_and_never_stale(tmp_path, monkeypatch):
    model, x, y = LayaModel(tiny(), 5, pool="cls"), images(6), torch.arange(6) % 5
    plain = model.features(x)
    found, labels = cached_features(model, (x, y), tmp_path, batch_size=4)
    assert torch.equal(labels, y)
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(found, plain, strict=True))
    in_memory, _ = cached_features(model, (x, y), batch_size=4)
    assert all(torch.equal(a, b) for a, b in zip(found, in_memory, strict=True))
    (place,) = tmp_path.iterdir()
    assert json.loads((place / "done.json").read_text()) == {"examples": 6}

    ran = []
    collect = LayaModel.features
    monkeypatch.setattr(LayaModel, "features", lambda self, *a: ran.append(1) or collect(self, *a))
    cached_features(model, TensorDataset(x, y), tmp_path, batch_size=4)
    assert ran == []
    changed = x.clone()
    changed[5, 2, 31, 31] += 1e-3
    other = LayaModel(tiny(), 5, pool="cls")
    with torch.no_grad():
        other.backbone.blocks[2].norm2.bias[3] += 1e-3
    for what, inputs in ((model, (changed, y)), (model, (x, y.flip(0))), (other, (x, y)),
                         (LayaModel(tiny(), 5, pool="mean"), (x, y))):  # fmt: skip
        ran.clear()
        fresh, _ = cached_features(what, inputs, tmp_path, batch_size=4)
        assert len(ran) == 2
        assert all(relative_error(a, b) < 1e-5 for a, b in zip(fresh, collect(what, inputs[0]), strict=True))


def test_a_cache_that_was_not_finished_is_made_again(tmp_path, monkeypatch):
    model, x, y = LayaModel(tiny(), 5, pool="cls"), images(6), torch.arange(6) % 5
    collect, calls = LayaModel.features, []

    def killed(self, *a):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return collect(self, *a)

    monkeypatch.setattr(LayaModel, "features", killed)
    with pytest.raises(KeyboardInterrupt):
        cached_features(model, (x, y), tmp_path, batch_size=2)
    monkeypatch.undo()
    found, _ = cached_features(model, (x, y), tmp_path, batch_size=2)
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(found, model.features(x), strict=True))
    assert [place.suffix for place in tmp_path.iterdir()] == [""]


def test_a_whole_model_is_trained_where_it_is_not_frozen():
    train = digit_scenes("train", 64)
    model = LayaModel(embedded_model("mean-pool"), 10, pool="mean", freeze=False)
    before = model.backbone.blocks[0].attn.qkv.weight.clone()
    fit(model, (train.images, train.labels), (train.images, train.labels), epochs=1, batch_size=32)
    assert not torch.equal(before, model.backbone.blocks[0].attn.qkv.weight)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: fit(head(), data(), data(), epochs=0), ValueError, "epochs=0"),
        (lambda: fit(head(), data(), data(), batch_size=0), ValueError, "batch_size=0"),
        (lambda: fit(head(), (data()[0], torch.zeros(3).long()), data()), InputError, "120 inputs and 3 labels"),
        (lambda: fit(head(), data()[0], data()), InputError, "pair"),
        (
            lambda: cached_features(LayaModel(tiny(), 5, pool="cls", freeze=False), (images(), torch.zeros(2).long())),
            InputError, "freeze=True",
        ),
        (
            lambda: cached_features(LayaModel(tiny(), 5, pool=lambda t: t[:, 0]), (images(), torch.arange(2)), "x"),
            InputError, "callable",
        ),
        (lambda: fit(head(), data(), (data()[0], torch.zeros(120, 1).long())), InputError, "whole numbers"),
        (lambda: fit(head(), data(), ([torch.zeros(0, 6)] * 2, torch.zeros(0).long())), InputError, "no example"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_two_processes_and_a_slow_one_leave_a_right_cache(tmp_path, monkeypatch):
    """Another process finishes first, and a third is killed: what lies there is whole."""
    model, x, y = LayaModel(tiny(), 5, pool="cls"), images(6), torch.arange(6) % 5
    collect, inside = LayaModel.features, []

    def interrupted(self, *a):
        if not inside:
            inside.append(1)
            cached_features(model, (x, y), tmp_path, batch_size=2)  # the other one, from start to end
        return collect(self, *a)

    monkeypatch.setattr(LayaModel, "features", interrupted)
    found, _ = cached_features(model, (x, y), tmp_path, batch_size=2)
    monkeypatch.undo()
    for one in (found, cached_features(model, (x, y), tmp_path, batch_size=2)[0]):
        assert all(relative_error(a, b) < 1e-5 for a, b in zip(one, model.features(x), strict=True))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_sees_settings_buffers_and_a_tokenisers_mapping(tmp_path):
    from collections import UserDict

    def net(scale, act):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.tensor(scale), persistent=False)
                self.a, self.act, self.b = nn.Linear(4, 4), act, nn.Linear(4, 4)

            def forward(self, x):
                return self.act(self.b(self.act(self.a(x * self.scale))))

        torch.manual_seed(0)
        return LayaModel(Net(), 2, width=4)

    x = (torch.randn(5, 4), torch.zeros(5).long())
    seen = [
        cached_features(net(s, a), x, tmp_path)[0][1] for s, a in ((1.0, nn.GELU()), (2.0, nn.GELU()), (1.0, nn.ReLU()))
    ]
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])

    class Texts(torch.utils.data.Dataset):
        def __init__(self, shift):
            self.shift = shift

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return UserDict({"ids": torch.arange(3) + i + self.shift}), 0

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(20, 4)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 8, batch_first=True) for _ in range(2))

        def forward(self, ids):
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x)
            return x

    words = LayaModel(Words(), 2, pool="mean", width=4, example={"ids": torch.arange(3)[None]})
    one, other = (cached_features(words, Texts(shift), tmp_path)[0][0] for shift in (0, 9))
    assert not torch.equal(one, other)
    fit(words, Texts(0), Texts(9), epochs=1, cache=tmp_path)


def test_a_checkpoint_of_other_data_weights_or_optimiser_is_refused(tmp_path):
    features, labels = data()

    def run(seed=0, labels=labels, lr=0.01, **options):
        path = tmp_path / "a.pt"
        return fit(head(seed, **options), (features, labels), data(60, 1), epochs=1, lr=lr, checkpoint=path)

    run()
    for changed in ({"labels": labels.flip(0)}, {"lr": 0.02}, {"temperature": 3.0}, {"seed": 1}):
        with pytest.raises(InputError, match="another training"):
            run(**changed)


def test_inputs_by_position_and_by_name_and_callers_without_gradients():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(3, 2)

        def forward(self, a, b):
            return self.out(a * b)

    a, b, y = torch.randn(9, 3), torch.randn(9, 3), torch.arange(9, dtype=torch.int32) % 2
    found = []
    for inputs in ([a, b], {"a": a, "b": b}):
        torch.manual_seed(0)
        model = Two()
        with torch.no_grad():
            found.append(fit(model, (inputs, y), (inputs, y), epochs=2, batch_size=4))
    assert found[0] == found[1]
