"""The plots of docs/performance.md, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import size_name
from targets import SEAL, UNSEAL

COLOURS = {
    "mcpkeys": "#0b6e4f",
    "SDK built-in": "#c1121f",
    "SDK docs' envelope (hex)": "#f4a261",
    "Fernet": "#7b2cbf",
    "joserfc (JWE dir A256GCM)": "#3a86ff",
    "Tink (AES256-GCM)": "#8d99ae",
    "AWS Encryption SDK (cached)": "#6c584c",
    "limit (AES-GCM + urandom + base64)": "#adb5bd",
}


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """`performance.svg` and `refusals.svg`; none where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "mcpkeys", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False})
    mpl.rcParams.update(
        {"axes.spines.right": False, "figure.facecolor": "white", "axes.grid": True, "grid.alpha": 0.25}
    )
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _codecs(found["sealing"], folder / "performance.svg"),
        _refusals(found["refusals"], folder / "refusals.svg"),
    ]


def _codecs(found: dict[str, Any], path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
    for column, (operation, bounds) in enumerate((("seal", SEAL), ("unseal", UNSEAL))):
        rows = [row for row in found["rows"] if row["operation"] == operation]
        names = list(dict.fromkeys(row["name"] for row in rows))
        sizes = list(dict.fromkeys(row["bytes"] for row in rows))
        by = {(row["name"], row["bytes"]): row for row in rows}
        times = axes[0][column]
        for name in names:
            times.plot(
                sizes,
                [by[name, size]["us"] for size in sizes],
                marker="o",
                markersize=4,
                linewidth=2.6 if name == "mcpkeys" else 1.4,
                linestyle="--" if name.startswith("limit") else "-",
                color=COLOURS.get(name),
                label=name,
                zorder=3 if name == "mcpkeys" else 2,
            )
        times.set(xscale="log", yscale="log", title=f"{operation}: time of one call", ylabel="µs")
        times.set_xticks(sizes, [size_name(size) for size in sizes])
        times.minorticks_off()
        _ratios(axes[1][column], operation, sizes, by, bounds)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return path


def _ratios(axis: Any, operation: str, sizes: list[int], by: dict[Any, Any], bounds: dict[int, float]) -> None:
    limit = "limit (AES-GCM + urandom + base64)"
    at = range(len(sizes))
    measured = [by["mcpkeys", size]["ratio"] for size in sizes]
    bars = axis.bar(at, measured, width=0.55, color=COLOURS["mcpkeys"], label="mcpkeys", zorder=2)
    axis.bar_label(bars, [f"{value:.2f}" for value in measured], fontsize=9, label_type="center", color="white")
    for i, size in enumerate(sizes):
        if size in bounds:
            axis.hlines(
                bounds[size],
                i - 0.38,
                i + 0.38,
                color="#111",
                linewidth=1.8,
                zorder=3,
                label="target" if not i else None,
            )
        axis.hlines(
            by[limit, size]["ratio"],
            i - 0.38,
            i + 0.38,
            color="#6c757d",
            linestyle=":",
            zorder=3,
            label="limit" if not i else None,
        )
    axis.axhline(1, color=COLOURS["SDK built-in"], linewidth=1.2, label="SDK built-in")
    axis.set(title=f"{operation}: ratio to the SDK's built-in codec", ylim=(0, 1.12), ylabel="lower is faster")
    axis.set_xticks(list(at), [size_name(size) for size in sizes])
    axis.grid(visible=False, axis="x")
    if operation == "unseal":
        axis.legend(fontsize=7.5, loc="upper right", bbox_to_anchor=(1, 0.94))


def _refusals(found: dict[str, Any], path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(10, 5), layout="constrained")
    kinds = list(dict.fromkeys(row["kind"] for row in found["rows"]))
    for i, kind in enumerate(kinds):
        rows = sorted((row for row in found["rows"] if row["kind"] == kind), key=lambda row: row["chars"])
        axis.plot(
            [row["chars"] for row in rows],
            [row["us"] for row in rows],
            marker="o",
            markersize=4,
            label=kind,
            color="#6c757d" if kind.startswith("limit") else f"C{i}",
            linestyle="--" if kind.startswith("limit") else "-",
        )
    lengths = sorted({row["chars"] for row in found["rows"]})
    axis.plot(lengths, [1.5] * len(lengths), "k--", linewidth=1, label="bound before any work: 1.5 µs")
    legal = list(range(64, 1_048_577, 1024))
    axis.plot(
        legal, [25 * -(-n // 65536) for n in legal], "k:", linewidth=1.2, label="bound of legal work: 25 µs per 64 Ki"
    )
    axis.set(
        xscale="log", yscale="log", xlabel="characters of the refused token", ylabel="µs", title="Refusing a token"
    )
    axis.legend(fontsize=7.5, loc="upper left")
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return path
