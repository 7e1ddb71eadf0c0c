"""Sources of a benchmark: order, labels and digests; masks against geometry worked out by hand; what goes wrong."""

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from xattr.benchmark.sources import SOURCES, check_options, hugging_face, open_source, options_of
from xattr.benchmark.sources.masks import paint_boxes, paint_mask, through
from xattr.benchmark.sources.pictures import PictureSource, Row
from xattr.datasets import CIFAR_CLASSES, cell_masks, digit_scenes
from xattr.trace import Preprocessing
from xattr.trace.errors import InputError, LoadError, PlanError

HALF = (0.5, 0.5, 0.5)


def prepared(change=lambda image: image, size=(10, 10), mean=HALF, std=HALF):
    """A preprocessing that normalises after a change of places."""
    scale = lambda x: (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    return Preprocessing(lambda image: scale(pil_to_tensor(change(image)) / 255), mean, std, size)


PLAIN = prepared()


def picture(width=40, height=20, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def centre_crop(image):
    """The shorter side to 10, then the 10 x 10 in the middle."""
    scale = 10 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BOX)
    left, top = (image.width - 10) // 2, (image.height - 10) // 2
    return image.crop((left, top, left + 10, top + 10))


def rectangle(top, left, bottom, right, size=(10, 10)):
    mask = torch.zeros(1, 1, *size, dtype=torch.bool)
    mask[..., top:bottom, left:right] = True
    return mask


@pytest.fixture
def pets(tmp_path):
    """Two classes in sub-folders, twelve pictures, and things that are no pictures of it."""
    for i in range(12):
        place = tmp_path / "pets" / ("dog" if i % 2 else "cat")
        place.mkdir(parents=True, exist_ok=True)
        picture(seed=i).save(place / f"p{i}.png")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / "pets" / "cat" / "._p0.png").write_bytes(b"of another system")
    (tmp_path / "pets" / ".cache").mkdir()
    picture().save(tmp_path / "pets" / ".cache" / "p0.png")
    return tmp_path


NAMES = [f"cat/p{i}.png" for i in range(0, 12, 2)] + [f"dog/p{i}.png" for i in range(1, 12, 2)]


def write_csv(path, head, rows):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([head, *rows])


def same(a, b):
    return all(torch.equal(getattr(a, k), getattr(b, k)) for k in ("images", "pictures", "labels", "masks"))


# Options


def test_options_are_known_before_anything_is_opened():
    assert options_of("folder") == ("path", "labels", "classes", "boxes", "masks", "n", "start", "shuffle")
    assert all("relative_to" not in options_of(use) and "name" not in options_of(use) for use in SOURCES)
    check_options("folder", {"path": "nowhere", "n": 3, "classes": {"cat": 281}})


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("photos", {}, "no source of pictures 'photos'; there are scenes, folder"),
        ("scenes", {"amount": 3}, "scenes has no option 'amount'; there are split, n, seed, mask"),
        ("scenes", {"mask": "digit"}, 'mask=\'digit\'; expected "cell" or "ink"'),
        ("scenes", {"n": "3"}, "n='3'; expected a whole number"),
        ("scenes", {"n": True}, "n=True; expected a whole number"),
        ("scenes", {"n": 0}, "n=0; expected a whole number from 1"),
        ("folder", {}, "folder needs path; its options are"),
        ("folder", {"path": "x", "start": -1}, "start=-1; expected a whole number from 0"),
        ("folder", {"path": 3}, "path=3; expected text"),
        ("folder", {"path": "x", "classes": "cat"}, "expected a list or a table"),
        ("torchvision", {"dataset": "CIFAR10", "download": "yes"}, "download='yes'; expected true or false"),
        ("torchvision", {"dataset": "CIFAR10", "arguments": ["train"]}, "expected a table"),
    ],
)
def test_wrong_options(use, options, message):
    with pytest.raises(PlanError) as caught:
        check_options(use, options)
    assert message in str(caught.value)
    with pytest.raises(ValueError):
        open_source(use, options, "/")


def test_the_import_is_light():
    code = "import sys, xattr.benchmark.sources; print([m for m in sys.modules if '.' not in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'torch'" in found
    assert not any(f"'{name}'" in found for name in ("datasets", "pandas", "pyarrow", "torchvision", "timm"))


# What travels with the package


@pytest.mark.parametrize("mask", ["cell", "ink"])
def test_scenes(mask):
    wanted = digit_scenes("tuning", 6, seed=4)
    source = open_source("scenes", {"split": "tuning", "n": 6, "seed": 4, "mask": mask})
    found = source.load(range(1, 5), None)
    assert (len(source), source.has_masks, source.has_labels) == (6, True, True)
    assert torch.equal(found.images, wanted.images[1:5])
    assert torch.equal(found.labels, wanted.labels[1:5])
    assert torch.equal(found.masks, (cell_masks(wanted.cells) if mask == "cell" else wanted.masks)[1:5])
    assert torch.equal(found.pictures, (wanted.images[1:5] * 255).round().byte().permute(0, 2, 3, 1))
    assert found.names == ("tuning/1", "tuning/2", "tuning/3", "tuning/4")


def test_scenes_follow_the_model():
    source = open_source("scenes", {"n": 3})
    plain = source.load(range(3), None)
    identity = Preprocessing(lambda image: image, (0.0,), (1.0,), (24, 24))
    assert torch.equal(source.load(range(3), identity).images, plain.images)
    colours = Preprocessing(lambda image: image, (0.5, 0.25, 0.0), (0.5, 1.0, 2.0), (24, 24))
    found = source.load(range(3), colours)
    assert torch.equal(found.images[:, :1], plain.images * 2 - 1)
    assert torch.equal(found.images[:, 2:], plain.images / 2)
    assert torch.equal(found.pictures, plain.pictures)
    with pytest.raises(InputError, match=r"24 x 24, the model takes 10 x 10.*embedded/class-token"):
        source.load(range(3), PLAIN)


def test_digests_of_scenes_are_of_rows():
    few, many = (open_source("scenes", {"n": n}) for n in (4, 9))
    assert few.digest(range(4)) == many.digest(range(4)) != many.digest(range(1, 5))
    assert len(few.digest(range(4))) == 64
    assert few.digest(range(4)) != open_source("scenes", {"n": 4, "mask": "ink"}).digest(range(4))
    assert few.digest(range(4)) != open_source("scenes", {"n": 4, "seed": 1}).digest(range(4))


def test_photographs_of_the_package():
    source = open_source("cifar-photographs", {})
    found = source.load(range(len(source)), PLAIN_32)
    assert [CIFAR_CLASSES[i] for i in found.labels] == list(found.names)
    assert found.masks is None and not source.has_masks


PLAIN_32 = prepared(lambda image: image.resize((32, 32)), (32, 32))


def test_fashion(tmp_path, monkeypatch):
    monkeypatch.setenv("XATTR_FASHION_MNIST", str(tmp_path))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + pixels.tobytes()))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + bytes([3, 1, 4, 1, 5])))
    grey = Preprocessing(lambda image: pil_to_tensor(image) / 255, (0.0,), (1.0,), (28, 28))
    source = open_source("fashion-mnist", {"n": 3, "start": 1})
    found = source.load(range(3), grey)
    assert found.labels.tolist() == [1, 4, 1]
    assert found.pictures.shape == (3, 28, 28, 1)
    assert np.array_equal(found.pictures[..., 0].numpy(), pixels[1:4])


def test_fashion_is_absent(monkeypatch, tmp_path):
    from xattr.datasets import fashion

    monkeypatch.setattr(fashion, "_SYSTEM", tmp_path)
    monkeypatch.delenv("XATTR_FASHION_MNIST", raising=False)
    with pytest.raises(LoadError, match="dataset-fashion-mnist"):
        open_source("fashion-mnist", {})


# A folder


def test_a_folder_in_natural_order(pets):
    source = open_source("folder", {"path": "pets"}, pets)
    found = source.load(range(12), PLAIN)
    assert list(found.names) == NAMES
    assert (found.labels, found.masks, source.has_labels, source.has_masks) == (None, None, False, False)
    with Image.open(pets / "pets" / NAMES[5]) as image:
        assert torch.equal(found.images[5:6], PLAIN(image))
        assert np.array_equal(found.pictures[5].numpy(), np.asarray(image))
    assert torch.equal(
        found.images, open_source("folder", {"path": str(pets / "pets")}, "/").load(range(12), PLAIN).images
    )


def test_a_part_of_a_folder(pets):
    names = lambda **options: open_source("folder", {"path": "pets", **options}, pets).names
    assert list(names(n=3, start=4)) == NAMES[4:7]
    assert list(names(start=10)) == NAMES[10:]
    mixed = names(shuffle=5)
    assert sorted(mixed) == sorted(NAMES) and list(mixed) != NAMES
    assert names(shuffle=5, n=4, start=2) == mixed[2:6]
    assert names(shuffle=6) != mixed
    for wrong in ({"n": 13}, {"n": 3, "start": 10}, {"start": 12}):
        with pytest.raises(PlanError, match=r"there are 12 pictures.*start \+ n <= 12"):
            names(**wrong)


def test_classes_are_folders(pets):
    labels = lambda **more: open_source("folder", {"path": "pets", "labels": "folders", **more}, pets)
    assert labels().load(range(12), PLAIN).labels.tolist() == [0] * 6 + [1] * 6
    assert labels(n=1, start=7).load(range(1), PLAIN).labels.tolist() == [1]
    assert labels(classes={"cat": 281, "dog": 207}).load(range(5, 7), PLAIN).labels.tolist() == [281, 207]
    assert labels(classes=["dog", "cow", "cat"]).load(range(5, 7), PLAIN).labels.tolist() == [2, 0]
    (pets / "pets" / "bird").mkdir()
    assert labels().load(range(5, 7), PLAIN).labels.tolist() == [1, 2]
    with pytest.raises(InputError, match="'cat'; expected dog"):
        labels(classes=["dog"])
    with pytest.raises(PlanError, match="expected names, or name -> index from 0"):
        labels(classes={"dog": -1, "cat": 1})
    picture().save(pets / "pets" / "stray.png")
    with pytest.raises(InputError, match=r"'stray.png' lies in no sub-folder"):
        labels()


def test_numbered_folders_are_names(tmp_path):
    for name in ("2", "10"):
        (tmp_path / name).mkdir()
        picture().save(tmp_path / name / "a.png")
    found = open_source("folder", {"path": ".", "labels": "folders"}, tmp_path).load(range(2), PLAIN)
    assert dict(zip(found.names, found.labels.tolist(), strict=True)) == {"2/a.png": 1, "10/a.png": 0}


@pytest.mark.parametrize("form", ["csv", "list", "object"])
@pytest.mark.parametrize("key", ["path", "stem"])
@pytest.mark.parametrize("kind", ["index", "name"])
def test_labels_in_a_table(pets, form, key, kind):
    written = {name: (i * 7 if kind == "index" else f"class {i % 3}") for i, name in enumerate(NAMES)}
    rows = [(name if key == "path" else name[4:-4], label) for name, label in written.items()]
    file = pets / f"labels.{'csv' if form == 'csv' else 'json'}"
    if form == "csv":
        write_csv(file, ["label", "name", "more"], [(label, name, "x") for name, label in rows])
    elif form == "list":
        file.write_text(json.dumps([{"name": name, "label": label} for name, label in rows]))
    else:
        file.write_text(json.dumps(dict(rows)))
    found = open_source("folder", {"path": "pets", "labels": file.name}, pets).load(range(12), PLAIN)
    assert found.labels.tolist() == [i * 7 if kind == "index" else i % 3 for i in range(12)]
    assert found.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([("p0", 1)], {}, r"no label in labels.csv for the picture 'cat/p2.png'"),
        ([(f"p{i}", i - 1) for i in range(12)], {}, r"labels.csv holds the label '-1'; expected an index from 0"),
        ([(f"p{i}", f"{i}.0") for i in range(12)], {}, r"holds the label '0.0'"),
        ([(f"p{i}", "cat" if i else 3) for i in range(12)], {}, r"numbers and names of classes, such as 'cat'"),
        ([(f"p{i}", i % 3) for i in range(12)], {"classes": ["a", "b"]}, r"the label '2'; expected a, b"),
        ([*((f"p{i}", 1) for i in range(12)), ("p3", 2)], {}, r"labels.csv has 2 labels for 'p3'"),
        ([("", 1)], {}, r"an entry without 'name'"),
    ],
)
def test_wrong_labels(pets, rows, more, message):
    write_csv(pets / "labels.csv", ["name", "label"], rows)
    with pytest.raises(InputError, match=message):
        open_source("folder", {"path": "pets", "labels": "labels.csv", **more}, pets)


def test_a_bare_name_fits_one_picture(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        picture().save(tmp_path / name / "1.png")
    write_csv(tmp_path / "labels.csv", ["name", "label"], [("1.png", 4)])
    with pytest.raises(InputError, match=r"'1.png' fits two pictures, one is 'b/1.png'; expected paths"):
        open_source("folder", {"path": ".", "labels": "labels.csv", "n": 1}, tmp_path)


# Masks and boxes


BOX = (10, 4, 20, 12)  # of a picture 40 x 20; halved and cropped by 5 at the left it is columns 0..4, rows 2..5
SEEN = rectangle(2, 0, 6, 5)


def write_boxes(base, form, boxes):
    """Boxes by name of a picture, in one of the forms."""
    if form == "voc":
        (base / "boxes").mkdir(exist_ok=True)
        for name, found in boxes.items():
            tags = "".join(
                f"<object><name>x</name><bndbox><xmin>{a + 1}</xmin><ymin>{b + 1}</ymin><xmax>{c}</xmax>"
                f"<ymax>{d}</ymax></bndbox></object>"
                for a, b, c, d in found
            )
            (base / "boxes" / f"{name}.xml").write_text(f"<annotation>{tags}</annotation>")
        return "boxes"
    if form == "csv":
        rows = [(name, *box) for name, found in boxes.items() for box in found or [("", "", "", "")]]
        write_csv(base / "boxes.csv", ["name", "x1", "y1", "x2", "y2"], rows)
        return "boxes.csv"
    lists = {name: [list(box) for box in found] for name, found in boxes.items()}
    if form == "records":
        lists = {k: [dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)) for box in v] for k, v in lists.items()}
    (base / "boxes.json").write_text(json.dumps(lists))
    return "boxes.json"


@pytest.mark.parametrize("form", ["voc", "csv", "json", "records"])
def test_boxes_follow_the_picture(tmp_path, form):
    (tmp_path / "x").mkdir()
    boxes = {"one": [BOX], "two": [BOX, (26, 0, 40, 20)], "away": [(0, 0, 10, 20)], "none": []}
    for i, name in enumerate(boxes):
        picture(seed=i).save(tmp_path / "x" / f"{name}.png")
    options = {"path": "x", "boxes": write_boxes(tmp_path, form, boxes)}
    source = open_source("folder", options, tmp_path)
    assert source.has_masks
    found = source.load(range(4), prepared(centre_crop))
    masks = dict(zip(found.names, found.masks, strict=True))
    assert found.masks.dtype == torch.bool
    assert torch.equal(masks["one.png"], SEEN[0])
    assert torch.equal(masks["two.png"], (SEEN | rectangle(0, 8, 10, 10))[0])
    assert not masks["away.png"].any()
    assert not masks["none.png"].any()


def test_an_upright_picture_has_upright_boxes(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it
    upright = picture()
    (tmp_path / "x").mkdir()
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "x" / "turned.png", exif=exif)
    write_boxes(tmp_path, "csv", {"turned": [BOX]})
    found = open_source("folder", {"path": "x", "boxes": "boxes.csv"}, tmp_path).load(range(1), prepared(centre_crop))
    assert np.array_equal(found.pictures[0].numpy(), np.asarray(centre_crop(upright)))
    assert torch.equal(found.masks, SEEN)


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16", "RGB", "RGBA", "LA"])
def test_masks_are_what_is_not_zero(tmp_path, mode):
    inside = np.zeros((20, 40), bool)
    inside[4:12, 10:20] = True
    mask = Image.fromarray(inside.astype(np.uint16)) if mode == "I;16" else Image.fromarray(inside.astype(np.uint8))
    if mode == "1":
        mask = Image.fromarray(inside)
    elif mode == "P":
        mask.putpalette([255, 255, 255, 0, 0, 0])  # number 0 is white, and still outside
    elif mode in ("RGB", "RGBA", "LA"):
        mask = mask.convert(mode)
    for part in ("x", "x/masks"):
        (tmp_path / part).mkdir()
    picture().save(tmp_path / "x" / "one.jpg")
    mask.save(tmp_path / "x" / "masks" / "one.png")
    source = open_source("folder", {"path": "x", "masks": "x/masks"}, tmp_path)
    assert source.names == ("one.jpg",)  # a mask is no picture
    assert torch.equal(source.load(range(1), prepared(centre_crop)).masks, SEEN)


def test_folders_of_annotations_are_no_class(tmp_path):
    for name in ("b", "c", "annotations"):
        (tmp_path / "x" / name).mkdir(parents=True)
    for name in ("b", "c"):
        picture().save(tmp_path / "x" / name / f"{name}.png")
        (tmp_path / "x" / "annotations" / f"{name}.xml").write_text("<annotation/>")
    options = {"path": "x", "labels": "folders", "boxes": "x/annotations"}
    assert open_source("folder", options, tmp_path).load(range(2), PLAIN).labels.tolist() == [0, 1]


@settings(max_examples=40, deadline=None)
@given(
    scale=st.integers(1, 4),
    grid=st.tuples(st.integers(3, 8), st.integers(3, 8)),
    data=st.data(),
    fill=st.sampled_from(["black", "white", "grey"]),
)
def test_masks_follow_any_crop_and_padding(scale, grid, data, fill):
    rows, columns = grid
    left, top = (data.draw(st.integers(-3, side - 1)) for side in (columns, rows))
    x1, x2 = sorted(data.draw(st.lists(st.integers(0, columns), min_size=2, max_size=2, unique=True)))
    y1, y2 = sorted(data.draw(st.lists(st.integers(0, rows), min_size=2, max_size=2, unique=True)))

    def change(image):
        small = image.resize((columns, rows), Image.Resampling.BOX)
        canvas = Image.new("RGB", (5, 6), fill)
        canvas.paste(small, (-left, -top))
        return canvas

    wanted = np.zeros((rows + 12, columns + 12), bool)
    wanted[6 + y1 : 6 + y2, 6 + x1 : 6 + x2] = True
    wanted = wanted[6 + top :, 6 + left :][:6, :5]
    painted = paint_boxes([tuple(scale * edge for edge in (x1, y1, x2, y2))], (columns * scale, rows * scale))
    found = through(painted, prepared(change, (6, 5)))[0, 0].numpy()
    assert np.array_equal(found[: wanted.shape[0], : wanted.shape[1]], wanted)
    assert found.sum() == wanted.sum()


def test_half_a_pixel():
    found = np.asarray(paint_boxes([(0.5, 0, 1.5, 1), (2.6, 0, 9, 9)], (5, 1)))[0] // 255
    assert found.tolist() == [1, 0, 0, 1, 1]  # pixel 0 by its centre, pixel 2 not
    beyond = np.asarray(paint_boxes([(-2, -3, 2, 1)], (5, 2))) // 255
    assert beyond.tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert not np.asarray(paint_boxes([], (5, 1))).any()


def test_libraries_transforms_move_masks_as_pictures():
    """A mask that is drawn into the picture itself is where the mask is said to be."""
    import timm

    from xattr.trace import preprocessing

    how = preprocessing(timm.create_model("test_vit"))
    box = (101, 40, 210, 150)
    drawn = paint_boxes([box], (300, 220))
    seen = how.inverse(how(drawn.convert("RGB")))[:, :1] > 0.5
    row = Row(picture(300, 220), inside=(box,))
    found = PictureSource("x", ("x",), lambda i: row, has_masks=True).load(range(1), how)
    assert torch.equal(found.masks, seen)
    assert 0.1 < float(seen.float().mean()) < 0.4


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((40, 0, 50, 5), "outside the picture of 40 x 20"),
        ((5, -9, 15, 0), "outside the picture of 40 x 20"),
        ((5, 5, 5, 9), "expected numbers with x1 < x2"),
        (("nan", 5, 6, 9), "expected numbers"),
    ],
)
def test_wrong_boxes_are_errors_of_their_rows(tmp_path, box, message):
    (tmp_path / "x").mkdir()
    for name in ("a", "b"):
        picture().save(tmp_path / "x" / f"{name}.png")
    write_boxes(tmp_path, "csv", {"a": [BOX], "b": [box]})
    source = open_source("folder", {"path": "x", "boxes": "boxes.csv"}, tmp_path)
    assert source.load(range(1), PLAIN).masks.any()
    with pytest.raises(InputError, match=rf"b\.png.*{message}"):
        source.load(range(2), PLAIN)


def test_boxes_of_no_picture(pets):
    write_boxes(pets, "csv", {name[4:]: [BOX] for name in [*NAMES, "cat/p77.png"]})
    with pytest.raises(InputError, match=r"no picture for the box in boxes.csv called 'p77.png'"):
        open_source("folder", {"path": "pets", "boxes": "boxes.csv"}, pets)
    write_boxes(pets, "csv", {name[4:]: [BOX] for name in NAMES[:3]})
    assert len(open_source("folder", {"path": "pets", "boxes": "boxes.csv", "n": 3}, pets)) == 3
    with pytest.raises(InputError, match=r"no box in boxes.csv for the picture 'cat/p6.png'"):
        open_source("folder", {"path": "pets", "boxes": "boxes.csv", "n": 4}, pets)


def test_xml_of_no_picture(tmp_path):
    for name in ("a", "b"):
        picture().save(tmp_path / f"{name}.png")
    write_boxes(tmp_path, "voc", {name: [BOX] for name in ("a", "b", "c")})
    with pytest.raises(InputError, match=r"no picture for the XML in 'boxes' called 'c'"):
        open_source("folder", {"path": ".", "boxes": "boxes"}, tmp_path)
    (tmp_path / "boxes" / "c.xml").unlink()
    assert open_source("folder", {"path": ".", "boxes": "boxes"}, tmp_path).load(range(2), PLAIN).masks.any()


def test_wrong_masks(tmp_path):
    for part in ("x", "m"):
        (tmp_path / part).mkdir()
    picture().save(tmp_path / "x" / "a.png")
    opened = lambda **more: open_source("folder", {"path": "x", "masks": "m", **more}, tmp_path)
    picture().save(tmp_path / "m" / "a.jpg")
    with pytest.raises(InputError, match=r"no mask in 'm' \(\.png, .*for the picture 'a.png'"):  # JPEG is never zero
        opened()
    Image.new("L", (20, 40)).save(tmp_path / "m" / "a.png")
    with pytest.raises(InputError, match=r"a\.png: the mask is 20 x 40, the picture 40 x 20"):
        opened().load(range(1), PLAIN)
    Image.new("L", (40, 20)).save(tmp_path / "m" / "a.bmp")
    with pytest.raises(InputError, match=r"a.bmp and a.png in 'm'"):
        opened()
    with pytest.raises(PlanError, match="boxes and masks; expected one"):
        opened(boxes="m")
    with pytest.raises(PlanError, match="the folder of the pictures"):
        opened(masks="x")
    with pytest.raises(InputError, match="the mask is 4 x 4"):
        paint_mask(Image.new("1", (4, 4)), (4, 5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><object>", "none of Pascal VOC"),
        ("<html/>", "found <html>"),
        ("<annotation><object><bndbox><xmin>1</xmin></bndbox></object></annotation>", "xmin"),
    ],
)
def test_wrong_xml(tmp_path, text, message):
    (tmp_path / "x").mkdir()
    picture().save(tmp_path / "x" / "a.png")
    (tmp_path / "x" / "a.xml").write_text(text)
    source = open_source("folder", {"path": "x", "boxes": "x"}, tmp_path)
    assert len(source.digest(range(1))) == 64
    with pytest.raises(InputError, match=rf"a\.png: .*{message}"):
        source.load(range(1), PLAIN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, "path='nowhere': there is no folder"),
        ({"path": "empty"}, r"holds no pictures; expected files ending in \.jpg"),
        ({"path": "pets", "labels": "labels.csv"}, "'labels.csv' is no file; expected 'folders', a CSV"),
        ({"path": "pets", "labels": "broken.json"}, "broken.json' cannot be read: JSONDecodeError"),
        (
            {"path": "pets", "labels": "other.csv"},
            "other.csv has no label, name in its first line; expected name, label",
        ),
        ({"path": "pets", "labels": "number.json"}, "an entry without 'name'"),
        ({"path": "pets", "boxes": "boxes"}, "boxes='boxes' is nothing; expected a folder of Pascal VOC XML"),
        ({"path": "pets", "boxes": "short.json"}, r"short.json has \[\[1, 2\]\].*expected x1, y1, x2, y2"),
        ({"path": "pets", "boxes": "words.json"}, "words.json has the boxes .*expected numbers"),
        ({"path": "pets", "masks": "masks"}, "masks='masks': there is no folder"),
        ({"path": "pets", "classes": ["a"]}, "classes without labels"),
    ],
)
def test_wrong_folders(pets, options, message):
    (pets / "empty").mkdir()
    (pets / "broken.json").write_text("{")
    (pets / "number.json").write_text("[3]")
    (pets / "other.csv").write_text("file,class\na,1\n")
    (pets / "short.json").write_text(json.dumps({"p0": [[1, 2]]}))
    (pets / "words.json").write_text(json.dumps({"p0": [["a", "b", "c", "d"]]}))
    with pytest.raises(ValueError, match=message):
        open_source("folder", options, pets)


def test_a_broken_picture_is_an_error_of_its_row(pets):
    place = pets / "pets" / "cat"
    whole = (place / "p2.png").read_bytes()
    (place / "p2.png").write_bytes(whole[: len(whole) // 2])
    (place / "p4.png").write_bytes(b"no picture at all")
    (place / "p6.png").write_bytes(b"")
    source = open_source("folder", {"path": "pets", "labels": "folders"}, pets)
    (place / "p8.png").unlink()
    assert len(source.digest(range(12))) == 64
    messages = {}
    for i in range(12):
        try:
            assert source.load(range(i, i + 1), PLAIN).names == (NAMES[i],)
        except InputError as error:
            messages[NAMES[i]] = str(error)
    assert list(messages) == ["cat/p2.png", "cat/p4.png", "cat/p6.png", "cat/p8.png"]
    assert all(message.startswith(f"folder 'pets', {name}: ") for name, message in messages.items())
    assert messages["cat/p4.png"].endswith("it is no picture that Pillow can read.")
    assert not any("0x" in message or str(pets) in message for message in messages.values())
    with pytest.raises(InputError, match=r"cat/p2.png"):
        source.load(range(12), PLAIN)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode")
def test_a_name_that_is_no_unicode(tmp_path):
    picture().save(tmp_path / "a.png")
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/a\xff.png")
    source = open_source("folder", {"path": "."}, tmp_path)
    assert source.load(range(1), PLAIN).names == ("a\ufffd.png",)
    assert len(source.digest(range(1))) == 64


def test_what_a_transform_gives(pets):
    picture(30, 30).save(pets / "pets" / "cat" / "p4.png")
    source = open_source("folder", {"path": "pets"}, pets)
    with pytest.raises(InputError, match=r"cat/p0.png is \[20, 40\] and cat/p4.png \[30, 30\].*one size"):
        source.load(range(12), PLAIN)
    assert source.load(range(2, 3), PLAIN).images.shape == (1, 3, 30, 30)
    with pytest.raises(InputError, match=r"FILE\.py:factory"):
        source.load(range(1), None)
    for rows in (range(0), range(11, 13), range(-1, 1)):
        with pytest.raises(InputError, match="at least one row, from 0 to 11"):
            source.load(rows, PLAIN)


# Digests


def test_a_digest_is_of_the_content(pets):
    write_csv(pets / "labels.csv", ["name", "label"], [(name, i) for i, name in enumerate(NAMES)])
    write_boxes(pets, "csv", {name: [BOX] for name in NAMES})
    options = {"path": "pets", "labels": "labels.csv", "boxes": "boxes.csv"}
    digest = lambda base=pets, rows=range(2, 5), **more: open_source("folder", options | more, base).digest(rows)
    first = digest()
    assert first == digest()
    assert first == digest(n=5) == digest(rows=range(1, 4), start=1)  # more or fewer rows are no other rows
    assert first != digest(rows=range(2, 6))
    assert first != digest(boxes="none") != digest(boxes="none", labels="none")
    moved = pets.parent / f"{pets.name}-moved"
    shutil.copytree(pets, moved)
    for file in moved.rglob("*"):
        os.utime(file, (1, 1))
    assert digest(moved) == first
    shutil.rmtree(moved)
    write_csv(pets / "labels.csv", ["name", "label"], [(name, 50 + i) for i, name in enumerate(NAMES)])
    second = digest()
    write_boxes(pets, "csv", {name: [BOX, (0, 0, 1, 1)] for name in NAMES})
    third = digest()
    picture(seed=77).save(pets / "pets" / NAMES[3])
    fourth = digest()
    (pets / "pets" / NAMES[3]).rename(pets / "pets" / "cat" / "p6b.png")
    write_csv(
        pets / "labels.csv", ["name", "label"], [(f"{n[:-4]}b" if i == 3 else n, 50 + i) for i, n in enumerate(NAMES)]
    )
    write_boxes(pets, "csv", {(f"{n[:-4]}b" if i == 3 else n): [BOX, (0, 0, 1, 1)] for i, n in enumerate(NAMES)})
    assert len({first, second, third, fourth, digest()}) == 5


def test_a_digest_is_of_masks(tmp_path):
    for part in ("x", "m"):
        (tmp_path / part).mkdir()
    picture().save(tmp_path / "x" / "a.png")
    digest = lambda: open_source("folder", {"path": "x", "masks": "m"}, tmp_path).digest(range(1))
    found = []
    for value in (0, 255):
        Image.new("L", (40, 20), value).save(tmp_path / "m" / "a.png")
        found.append(digest())
    assert found[0] != found[1]


def test_a_digest_knows_where_a_part_ends():
    digest = lambda name, content: PictureSource("x", (name,), lambda i: Row(content)).digest(range(1))
    assert len({digest("a", b"bc"), digest("ab", b"c"), digest("abc", b"")}) == 3


# Hugging Face


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Writes a data set of five pictures with `save_to_disk`."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def save(folder="saved", split=None, **columns):
        data = {"image": [picture(seed=i) for i in range(5)], **columns}
        features = {"image": datasets.Image()}
        for name, values in columns.items():
            if isinstance(values[0], Image.Image):
                features[name] = datasets.Image()
        made = datasets.Dataset.from_dict(data, split=split)
        for name, feature in features.items():
            made = made.cast_column(name, feature)
        made.save_to_disk(str(tmp_path / folder))
        return made

    return save


def hub_source(base, **options):
    return open_source("huggingface", {"path": "saved", **options}, base)


def test_hugging_face_rows(saved, tmp_path):
    saved(label=[3, 1, 4, 1, 5], split="test")
    source = hub_source(tmp_path, start=1, n=3)
    found = source.load(range(3), PLAIN)
    assert (found.labels.tolist(), found.masks, found.names) == ([1, 4, 1], None, ("test/1", "test/2", "test/3"))
    assert np.array_equal(found.pictures[1].numpy(), np.asarray(picture(seed=2)))
    assert hub_source(tmp_path, label="none").load(range(1), PLAIN).labels is None


def test_the_fingerprint_is_no_content(saved, tmp_path):
    first = saved(label=[3, 1, 4, 1, 5])
    a = hub_source(tmp_path)
    second = saved("again", label=[3, 1, 4, 1, 5], more=list("abcde"))
    third = saved("other", label=[3, 1, 4, 1, 6])
    again, other = (hub_source(tmp_path, path=path) for path in ("again", "other"))
    assert len({first._fingerprint, second._fingerprint, third._fingerprint}) == 3
    assert a.digest(range(5)) == again.digest(range(5)) != other.digest(range(5))
    assert a.digest(range(4)) == other.digest(range(4)) != a.digest(range(3))
    assert a.digest(range(1, 3)) == hub_source(tmp_path, start=1).digest(range(2))


@pytest.mark.parametrize("form", ["columns", "records", "boxes", "xyxy"])
def test_hugging_face_boxes(saved, tmp_path, form):
    x1, y1, x2, y2 = BOX
    box = [x1, y1, x2, y2] if form == "xyxy" else [x1, y1, x2 - x1, y2 - y1]
    objects = {
        "columns": [{"bbox": [box], "category": [1]}, {"bbox": [], "category": []}],
        "records": [[{"bbox": box, "category": 1}], []],
    }.get(form, [[box], []])
    saved(objects=objects + [objects[0]] * 3)
    more = {"box_format": "xyxy"} if form == "xyxy" else {}
    found = hub_source(tmp_path, label="none", boxes="objects", **more).load(range(3), prepared(centre_crop))
    assert torch.equal(found.masks, torch.cat([SEEN, torch.zeros_like(SEEN), SEEN]))


def test_hugging_face_masks(saved, tmp_path):
    mask = np.zeros((20, 40), np.uint8)
    mask[4:12, 10:20] = 1
    saved(mask=[Image.fromarray(mask)] * 5)
    source = hub_source(tmp_path, label="none", mask="mask")
    assert torch.equal(source.load(range(1), prepared(centre_crop)).masks, SEEN)
    assert source.digest(range(1)) != hub_source(tmp_path, label="none").digest(range(1))


def test_hugging_face_classes(saved, tmp_path):
    from datasets import ClassLabel

    made = saved(label=["dog", "cat", "dog", "cow", "cat"])
    assert hub_source(tmp_path).load(range(5), PLAIN).labels.tolist() == [2, 0, 2, 1, 0]
    assert hub_source(tmp_path, start=2, n=2).load(range(2), PLAIN).labels.tolist() == [2, 1]  # as among all rows
    made.cast_column("label", ClassLabel(names=["dog", "cat", "cow"])).save_to_disk(str(tmp_path / "numbered"))
    labels = lambda **more: hub_source(tmp_path, path="numbered", **more).load(range(5), PLAIN).labels.tolist()
    assert labels() == [0, 1, 0, 2, 1]
    assert labels(classes={"cat": 281, "dog": 207, "cow": 345}) == [207, 281, 207, 345, 281]
    with pytest.raises(InputError, match="column 'label' holds the label 'cow'; expected cat, dog"):
        labels(classes=["cat", "dog"])


@pytest.mark.parametrize("values", [[0, -1, 1, 2, 3], [0, None, 1, 2, 3], [[0], [1], [1], [2], [3]], [0.0, 1, 1, 1, 1]])
def test_labels_that_are_none(saved, tmp_path, values):
    saved(label=values)
    with pytest.raises(InputError, match=r"column 'label' holds the label (-1|None|\[0\]|0\.0); expected an index"):
        hub_source(tmp_path)


def test_a_broken_row(saved, tmp_path):
    from datasets import Dataset
    from datasets import Image as Pictures

    stored = [{"bytes": b"broken", "path": None}, None]
    Dataset.from_dict({"image": stored}).cast_column("image", Pictures()).save_to_disk(str(tmp_path / "broken"))
    source = hub_source(tmp_path, path="broken", label="none")
    assert len(source.digest(range(2))) == 64
    with pytest.raises(InputError, match=r"data set 'broken', 0: it is no picture"):
        source.load(range(1), PLAIN)
    with pytest.raises(InputError, match=r"data set 'broken', 1: found a NoneType; expected a picture"):
        source.load(range(1, 2), PLAIN)


def test_wrong_columns_and_splits(saved, tmp_path):
    from datasets import DatasetDict

    made = saved(label=[0, 1, 2, 3, 4], split="test", words=["a"] * 5)
    for options, message in [
        ({"image": "picture"}, r"no column image='picture' in saved; there are image, label, words"),
        ({"label": "class"}, r"no column label='class'.*or 'none'"),
        ({"mask": "m"}, "no column mask='m'"),
        ({"split": "train"}, "found split='train', but saved holds one split, test"),
        ({"path": "both"}, "found split=None of both; expected one of one, two"),
        ({"n": 6}, "there are 5 pictures"),
        ({"mask": "words", "boxes": "words"}, "mask and boxes; expected one"),
        ({"label": "none", "classes": ["a"]}, "classes without a label"),
    ]:
        DatasetDict(one=made, two=made).save_to_disk(str(tmp_path / "both"))
        with pytest.raises(ValueError, match=message):
            hub_source(tmp_path, **options)
    assert len(hub_source(tmp_path, path="both", split="two")) == 5
    with pytest.raises(InputError, match="expected four numbers in bbox"):
        hub_source(tmp_path, boxes="words").load(range(1), PLAIN)
    with pytest.raises(InputError, match="No such file"):
        hub_source(tmp_path, image="words").load(range(1), PLAIN)


def test_a_folder_as_on_the_hub(saved, pets):
    source = hub_source(pets, path="pets", split="train")
    found = source.load(range(12), PLAIN)
    assert found.labels.tolist() == [0] * 6 + [1] * 6
    shutil.copytree(pets / "pets", pets / "elsewhere")
    again = hub_source(pets, path="elsewhere", split="train")
    assert again.digest(range(12)) == source.digest(range(12))
    (pets / "elsewhere" / NAMES[0]).unlink()
    assert again.digest(range(1, 12)) == source.digest(range(1, 12))
    assert len({again.digest(range(1)), source.digest(range(1)), ""}) == 3
    with pytest.raises(InputError, match=r"data set 'elsewhere', train/0: it cannot be read: No such file or \w+$"):
        again.load(range(1), PLAIN)


def test_the_hub_is_asked_once(saved, tmp_path, monkeypatch):
    import datasets

    asked = []

    def load_dataset(path, config, split):
        asked.append((path, config, split, datasets.config.HF_HUB_OFFLINE))
        raise ConnectionError("there is no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    before = datasets.config.HF_HUB_OFFLINE
    for answers in (False, True):
        monkeypatch.setattr(hugging_face, "reachable", lambda url, answers=answers: answers)
        with pytest.raises(
            LoadError, match=r"'owner/pets' could not be loaded: ConnectionError: there is no network\."
        ):
            hub_source(tmp_path, path="owner/pets", config="small", split="test")
        assert before == datasets.config.HF_HUB_OFFLINE
    assert asked == [("owner/pets", "small", "test", True), ("owner/pets", "small", "test", before)]


@pytest.mark.parametrize(
    ("use", "options", "missing", "message"),
    [
        ("huggingface", {"path": "x"}, "datasets", r"needs datasets; pip install 'captum-xattr\[benchmark\]'"),
        ("torchvision", {"dataset": "CIFAR10"}, "torchvision", r"needs torchvision; pip install"),
    ],
)
def test_absent_packages_are_one_line(monkeypatch, use, options, missing, message):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(LoadError, match=message):
        open_source(use, options)


# torchvision


def test_torchvision_rows():
    from torchvision.datasets import FakeData

    arguments = {"size": 6, "image_size": [3, 8, 9], "num_classes": 4}
    opened = lambda **more: open_source("torchvision", {"dataset": "FakeData", "arguments": arguments, **more})
    source, wanted = opened(n=3, start=2), FakeData(6, (3, 8, 9), 4)
    found = source.load(range(3), PLAIN)
    assert (found.names, source.has_labels, source.has_masks) == (("2", "3", "4"), True, False)
    assert found.labels.tolist() == [int(wanted[i][1]) for i in (2, 3, 4)]
    assert np.array_equal(found.pictures[1].numpy(), np.asarray(wanted[3][0]))
    assert opened(labels=False).load(range(1), PLAIN).labels is None
    assert source.digest(range(2)) == opened().digest(range(2, 4)) != opened().digest(range(2))
    assert opened(labels=False).digest(range(2)) != opened().digest(range(2))
    others = opened(labels=False, arguments=arguments | {"random_offset": 1})
    assert others.digest(range(2)) != opened(labels=False).digest(range(2))


def test_torchvision_in_a_folder(pets):
    shutil.rmtree(pets / "pets" / ".cache")
    source = open_source("torchvision", {"dataset": "ImageFolder", "root": "pets"}, pets)
    (pets / "pets" / "cat" / "p0.png").write_bytes(b"broken")
    assert len(source.digest(range(13))) == 64
    for i in (0, 1):  # ._p0.png, p0.png
        with pytest.raises(InputError, match=rf"torchvision's ImageFolder, {i}: it is no picture that Pillow can read"):
            source.load(range(i, i + 1), PLAIN)
    assert source.load(range(6, 8), PLAIN).labels.tolist() == [0, 1]


def test_torchvision_downloads_when_told(monkeypatch, tmp_path):
    import torchvision.datasets as theirs

    made = []

    class Pets(theirs.VisionDataset):
        def __init__(self, root, download=False):
            made.append((root, download))

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return picture(), ["cat", -1][index]

    monkeypatch.setattr(theirs, "Pets", Pets, raising=False)
    source = open_source("torchvision", {"dataset": "Pets", "root": "here"}, tmp_path)
    open_source("torchvision", {"dataset": "Pets", "root": "here", "download": True}, tmp_path)
    assert made == [(str(tmp_path / "here"), False), (str(tmp_path / "here"), True)]
    with pytest.raises(InputError, match=r"Pets, 0: its target is 'cat'; expected the index.*labels = false"):
        source.load(range(1), PLAIN)
    with pytest.raises(InputError, match=r"Pets, 1: its target is '-1'"):
        source.load(range(1, 2), PLAIN)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"dataset": "cifar"}, PlanError, "no data set dataset='cifar'; there are CIFAR10, CIFAR100"),
        ({"dataset": "VisionDataset"}, PlanError, "no data set"),
        ({"dataset": "CIFAR10"}, PlanError, "CIFAR10 needs root; expected root, and the others in arguments"),
        ({"dataset": "CIFAR10", "root": "x"}, LoadError, "could not be opened: .*download = true"),
        (
            {"dataset": "CIFAR10", "root": "x", "arguments": {"split": "test"}},
            PlanError,
            "takes no split; it takes root",
        ),
        ({"dataset": "CIFAR10", "root": "x", "arguments": {"download": True}}, PlanError, "options of their own"),
        ({"dataset": "FakeData", "download": True}, PlanError, "takes no download"),
        ({"dataset": "FakeData", "n": 2000}, PlanError, "there are 1000 pictures"),
    ],
)
def test_wrong_torchvision_sets(tmp_path, options, kind, message):
    with pytest.raises(kind, match=message):
        open_source("torchvision", options, tmp_path)
    assert not list(tmp_path.iterdir())


# For all


@pytest.mark.parametrize("use", ["folder", "torchvision"])
def test_nothing_depends_on_the_other_rows(pets, use):
    write_csv(pets / "labels.csv", ["name", "label"], [(name, i) for i, name in enumerate(NAMES)])
    write_boxes(pets, "csv", {name: [BOX] for name in NAMES})
    options = {"path": "pets", "labels": "labels.csv", "boxes": "boxes.csv"}
    if use == "torchvision":
        options = {"dataset": "FakeData", "arguments": {"size": 12, "image_size": [3, 20, 40]}}
    source = open_source(use, options, pets)
    state = torch.get_rng_state()
    together = source.load(range(3, 6), PLAIN)
    for k, i in enumerate(range(3, 6)):
        alone = source.load(range(i, i + 1), PLAIN)
        assert torch.equal(alone.images[0], together.images[k])
        assert alone.labels[0] == together.labels[k]
        assert alone.names[0] == together.names[k]
        if together.masks is not None:
            assert torch.equal(alone.masks[0], together.masks[k])
    assert torch.equal(state, torch.get_rng_state())
