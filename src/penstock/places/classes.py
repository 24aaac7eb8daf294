"""How paths are classed: data, output, library, system, and files of Penstock itself."""

import re
from dataclasses import dataclass

__all__ = ["CLASSES", "PATH_RULES", "PathRule", "rule_of_run"]

CLASSES = ("data", "output", "library", "system", "penstock")


@dataclass(frozen=True, slots=True)
class PathRule:
    """A rule: a path with a match of `pattern` (RE2, searched anywhere in the path) has class
    `path_class`."""

    path_class: str
    pattern: str
    reason: str = ""


# The first match decides.  Without a match a path is `output` if the job wrote it, `library` by
# BESIDE_LIBRARY, else `data`. Only library, system and penstock outrank output: a .pyc file written
# by the job is a library file.
PATH_RULES: tuple[PathRule, ...] = (
    PathRule(
        "penstock",
        r"/[^/]+\.[0-9]+\.[0-9]+\.(events|log)$",
        "a run's own logs: the drain of a burst buffer looks into them while the job runs",
    ),
    PathRule(
        "penstock",
        r"/\.penstock(/|$)",
        "a tier's folder for marks, locks, manifests, copies under way and status",
    ),
    PathRule(
        "penstock",
        r"/\.{1,2}[^/]+\.penstock-index(\.[0-9a-f]+)?$",
        "an index of penstock.feed beside its data",
    ),
    PathRule(
        "penstock",
        r"/\.?[0-9a-f]{32}\.idx(\.[0-9a-f]+)?$|/penstock/index$",
        "an index of penstock.feed in a cache folder",
    ),
    PathRule(
        "penstock",
        r"/(\.?penstock-(manifest|part|incomplete)\.json|[^/]+\.penstock\.(json|half))"
        r"(\.penstock-part|\.[0-9a-f]{16})?$",
        "what a checkpoint consists of, and marks of one that is not whole",
    ),
    PathRule(
        "penstock",
        r"/\.penstock-(costs|ceiling|sums)-[^/]*(/|$)|\.penstock-(link|home)$",
        "measured speeds, checksums that ranks hand in, links of a burst buffer",
    ),
    PathRule("penstock", r"/penstock/\.?tiers\.json[^/]*$", "the list of tiers"),
    PathRule("system", r"^(pipe|socket|anon_inode|mnt|net|pidfd|/memfd):", "no file behind it"),
    PathRule("system", r"^/(proc|sys|run)(/|$)", "the kernel's own"),
    PathRule(
        "system", r"^/(SYSV[0-9a-f]{8}|dev/zero|\[aio\])( |$)", "mapped memory that is no file"
    ),
    PathRule(
        "system",
        r"^/dev/shm/(torch_|psm_|wnsm_|pym-|sem\.|mp-|__KMP|nccl-|cuda\.|vader|sm_segment)",
        "shared memory of torch, multiprocessing, OpenMP, NCCL and MPI",
    ),
    PathRule(
        "output",
        r"/burst/(data|home)/[0-9a-f]{24}-[^/]*$",
        "checkpoints on a burst buffer, which its drain reads",
    ),
    PathRule("data", r"^/dev/shm/", "a file system in memory, often used as the fast tier"),
    PathRule("system", r"^/dev(/|$)", "devices and terminals"),
    PathRule(
        "library",
        r"/(site-packages|dist-packages|__pycache__|lib-dynload|node_modules|conda-meta)(/|$)",
        "installed packages",
    ),
    PathRule(
        "library",
        r"/lib(32|64)?/(python[0-9.]*(\.zip)?|pkgconfig|locale|girepository-1\.0)(/|$)",
        "the interpreter's and the system's own files, wherever installed",
    ),
    PathRule("library", r"\.(py|pyc|pyo|pyi|pyd|pth|egg|whl|egg-link)$", "Python code"),
    PathRule("library", r"\.so(\.[0-9.]+)?$", "shared objects"),
    PathRule(
        "library",
        r"(\.(dist|egg)-info|\.cpython-[^/]*|/pyvenv\.cfg|/pybuilddir\.txt|\._pth|Setup\.local)(/|$)",
        "what the interpreter looks for when it starts",
    ),
    PathRule("library", r"\.(ttf|otf|ttc|pfb|afm|mo)$|/fonts?(/|$)", "fonts and translations"),
    PathRule(
        "library",
        r"/\.?(triton|torch_extensions|torchinductor_[^/]*|nv/ComputeCache|matplotlib|fontconfig)/",
        "caches of compiled kernels and fonts",
    ),
    PathRule(
        "data",
        r"^/usr/(local/)?(share|lib)/(dict|data|data-?sets?|nltk_data|corpora|tessdata|models?)(/|$)",
        "data sets that a package or an administrator put there",
    ),
    PathRule(
        "library",
        r"^/(etc|bin|sbin|lib|lib32|lib64|boot|nix/store|snap)(/|$)",
        "the operating system: libc, TLS and interpreters read it in every program",
    ),
    PathRule(
        "library",
        r"^/usr/(bin|sbin|lib|lib32|lib64|libexec|share|include)(/|$)",
        "the operating system: time zones, locales, certificates; no data set but those above",
    ),
    PathRule(
        "library",
        r"^/usr/local/(bin|sbin|lib|lib32|lib64|libexec|include|cuda[^/]*|"
        r"share/(man|info|doc|locale|i18n|ca-certificates|jupyter|mime|applications|icons|"
        r"bash-completion|zsh|perl|cmake|aclocal|xml|sgml))(/|$)",
        "programs installed by hand; what else lies in /usr/local/share is as likely a data set",
    ),
    PathRule("library", r"/bin/(python|pypy)[0-9.]*$", "the interpreter"),
)


def rule_of_run(folder: str) -> PathRule:
    """Return the rule for the run's own files, in the run folder."""
    names = (
        r"control|container|run(-[A-Za-z0-9.-]+)?\.json|(ceilings|fill)\.json|classes\.toml|"
        r"[^/]+\.(faults|system|reduced)|tables(/.*)?"
    )
    return PathRule("penstock", f"^{re.escape(folder)}/({names})$", "the run's own files")
