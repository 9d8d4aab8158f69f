# SPDX-License-Identifier: Apache-2.0
"""An evaluation with inspect-ai in which each sample has a sandbox of its own; nothing of them is left afterwards.

    python3 examples/inspect_ai_example.py LOG_DIRECTORY [MODEL]

The model is scripted, unless you name a real one: `anthropic/claude-sonnet-4-6`.
"""

import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

NAME = "mockllm/model"
steps = [
    ModelOutput.for_tool_call(NAME, "bash", {"command": "tr a-z A-Z <greeting.txt"}),
    ModelOutput.from_content(NAME, "It says HELLO."),
]
for step in steps:
    step.usage = ModelUsage()  # or they would be counted, with a table from the network
task = Task(
    dataset=[Sample("What is it in capital letters?", target="HELLO", files={"greeting.txt": "hello\n"})],
    solver=[use_tools(bash(timeout=60)), generate()],
    scorer=includes(),
    sandbox="unspill",  # or ("unspill", "policy.toml")
)
model = get_model(sys.argv[2]) if sys.argv[2:] else get_model(NAME, custom_outputs=steps)
log = eval(task, model=model, log_dir=sys.argv[1], display="none")[0]
print(log.status, *(message.text for sample in log.samples or [] for message in sample.messages[2:]), sep="\n")
