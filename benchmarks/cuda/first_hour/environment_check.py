"""Is this host fit for the rest: the doctor's checks of packages and cards, then torch, Triton and
the card in numbers.

    python -m benchmarks.cuda.first_hour.environment_check DEVICE
"""

from __future__ import annotations

import importlib.metadata
import sys

from benchmarks.cuda.first_hour.facts import print_facts
from helexa_site.doctor.examine import package_findings
from helexa_site.doctor.findings import Level, lines_of
from helexa_site.doctor.gpu_check import gpu_findings


def main() -> int:
    findings = [*package_findings(), *gpu_findings()]
    for finding in findings:
        print(*lines_of(finding), sep="\n")
    print_facts(**device_facts(sys.argv[1]))
    return 1 if any(finding.level is Level.FAILED for finding in findings) else 0


def device_facts(name: str) -> dict[str, object]:
    """Raises ``RuntimeError`` where torch has no such device."""
    import torch

    facts: dict[str, object] = {"torch": torch.__version__}
    for package in ("triton", "flashinfer-python", "flash-linear-attention", "vllm"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = torch.device(name)
    if device.type != "cuda":
        return facts
    major, minor = torch.cuda.get_device_capability(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return facts | {
        "card": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "cuda": torch.version.cuda,
        "free_gib": round(free_bytes / 2**30, 1),
        "total_gib": round(total_bytes / 2**30, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
