"""Two other distributions install the import name `xattr`; a mixture of them with this one must not run.

PyPI's `xattr` writes its files into the same folder as ours, `pyxattr` one extension module beside it. Whoever is
installed last wins, so the mixture fails later and elsewhere, as a baffling error. The guard ends it at the import.
"""

from pathlib import Path

_OWNERS = {
    "xattr": ("xattr", ("lib.py", "tool.py", "pyxattr_compat.py", "_lib.*so", "_lib.*pyd")),
    "pyxattr": (".", ("xattr.*so", "xattr.*pyd")),
}


def refuse_foreign_files(package: Path | None = None) -> None:
    """Raise if files of another distribution that owns the name `xattr` lie in or beside this package.

    Args:
        package: folder of the package; the one that holds this file by default.

    Raises:
        ImportError: one sentence with the foreign files, the distribution they belong to and the way out.
    """
    package = package or Path(__file__).resolve().parent
    for owner, (place, patterns) in _OWNERS.items():
        folder = package if place == "xattr" else package.parent
        found = sorted({path.name for pattern in patterns for path in folder.glob(pattern)})
        if found:
            raise ImportError(
                f"{', '.join(found)} in {folder} belong to the distribution '{owner}' (file attributes), which "
                f"installs the same import name as captum-xattr, so the two cannot share an environment: use a "
                f"separate one, or run 'pip uninstall {owner} captum-xattr' and then 'pip install captum-xattr' again."
            )
