"""The guides: one Markdown file per topic. `sublaplace help TOPIC` shows them, and README.md links to them."""

from pathlib import Path

FOLDER = Path(__file__).parent
TOPICS = {
    "spec": "every key of sublaplace.yaml, and which networks work",
    "models": "recipes: your own class, timm, torchvision, Lightning, torch.export; parts of a network",
    "result": "every metric; predictions, conformal intervals, unknown inputs, pictures and reports",
    "methods": "what each method is; many classes; posteriors as files",
    "priors": "how large the variances should be, and how to calibrate them",
    "ci": "exit codes, gates, baselines, sweeps over checkpoints",
    "devices": "CUDA, several processes and machines",
    "scaling": "time and memory, estimated before a run; beside laplace-torch; limits",
    "python": "the library, serving, and how to extend it",
    "files": "what a run keeps, where, and how to remove it",
    "security": "what files from others can and cannot do",
}


def text_of(topic: str) -> str:
    return (FOLDER / f"{topic}.md").read_text(encoding="utf-8")
