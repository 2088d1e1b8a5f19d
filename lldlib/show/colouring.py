"""How one number of a token becomes a colour."""

from dataclasses import dataclass
from functools import cache

from matplotlib import cm, colormaps
from matplotlib.colors import Normalize, to_hex, to_rgb

from lldlib.types import TokenInfo

YES, NO, NONE = "#56B4E9", "#D0D0D0", "#FFFFFF"  # of a number that is a yes or a no, or unknown


@dataclass(frozen=True)
class Colouring:
    """How one number of a token becomes a colour; colour-blind safe."""

    number: str  # the field of TokenInfo
    name: str  # on a button
    label: str  # what the number is, with its unit
    colours: str  # which colour says what
    ends: tuple[float, float] | None  # of the scale; None: the number is a yes or a no
    palette: str = ""  # matplotlib's name of the scale's colours

    @property
    def scale(self) -> cm.ScalarMappable:
        """The scale, for a colour bar."""
        return cm.ScalarMappable(Normalize(*self.ends, clip=True), colormaps[self.palette])


def signed(number: str, label: str, limit: float | int) -> Colouring:
    """A colouring of numbers of both signs, from -limit (brown) to limit (purple), 0 pale."""
    colours = f"purple {limit:+g}, brown {-limit:+g}"
    return Colouring(number, number, label, colours, (-float(limit), float(limit)), "PuOr")


LOGP = Colouring(
    "logp",
    "log-prob",
    "log-prob when sampled (nats)",
    "dark blue -5 and under, yellow 0",
    (-5.0, 0.0),
    "cividis",
)
CHANGE = signed("change", "change of log-prob (nats)", 0.5)
GATE = Colouring(
    "gate_open", "LLDS gate", "LLDS's gate", "blue open, grey shut, white none (A < 0)", None
)
PROTECTION = Colouring(
    "protected", "Lp-Reg", "Lp-Reg", "blue protected, grey not, white none (A >= 0)", None
)
COLOURINGS = (LOGP, CHANGE, GATE, PROTECTION)


@cache
def _kept_scale(by: Colouring) -> cm.ScalarMappable:
    """One scale for every token: matplotlib fills its table of colours at the first use."""
    return by.scale


def paint(token: TokenInfo, by: Colouring) -> tuple[str, str]:
    """Background and ink of a token, as hex; white where it has no such number."""
    value = getattr(token, by.number, None)  # a kind of token may lack it
    if value is None:
        return NONE, "#000000"
    face = (YES if value else NO) if by.ends is None else to_hex(_kept_scale(by).to_rgba(value))
    red, green, blue = to_rgb(face)
    return face, "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#FFFFFF"
