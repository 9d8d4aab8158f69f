# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501
"""Settings files as people have them before `unspill setup`: eight for each agent, by the name of the file.

Comments, tabs, other hooks and servers, one line, Windows line ends, trailing commas, values of ours that differ.
"""

from typing import Final

OTHER_HOOK: Final = '{"matcher": "Bash", "hooks": [{"type": "command", "command": "~/bin/audit"}]}'

CLAUDE: Final = [
    {"settings.json": "{}\n"},
    {"settings.json": '{"model":"opus","hooks":{"PreToolUse":[' + OTHER_HOOK + "]}}"},
    {
        "settings.json": '{\n  "permissions": {\n    "allow": [\n      "Bash(npm test:*)"\n    ],\n    "deny": ["Bash(rm:*)"]\n'
        '  },\n  "hooks": {\n    "SessionStart": [],\n    "Stop": [{"hooks": []}]\n  }\n}\n',
        ".claude.json": '{\n  "numStartups": 41,\n  "mcpServers": {\n    "github": {"command": "gh-mcp", "args": []}\n  }\n}',
    },
    {
        "settings.json": '{\n\t"env": {\n\t\t"A": "b"\n\t},\n\t"hooks": {\n\t\t"PreToolUse": [\n\t\t\t'
        + OTHER_HOOK
        + "\n\t\t]\n\t}\n}"
    },
    {"settings.json": '{\r\n    "theme": "dark",\r\n    "hooks": {}\r\n}\r\n', ".claude.json": '{ "mcpServers": { } }'},
    {
        "settings.json": "",
        ".claude.json": '{"projects":{"/home/ann/x":{"allowedTools":["Bash"],"exampleFiles":["a\\"b","//"]}}}\n',
    },
    {
        "settings.json": '\ufeff{\n  "statusLine": {"type": "command", "command": "echo \u2713 /* no comment */"}\n}\n\n\n'
    },
    {
        "settings.json": '{"permissions":\n  {"deny": ["WebFetch", "Edit" ], "allow": ["mcp__unspill"]}  ,\n "hooks"\n:{"PreToolUse": [  ]\n}}  \n',
        ".claude.json": '{"mcpServers": {"unspill": {"command": "/old/unspill", "args": ["mcp"]}}}',
    },
]

CODEX: Final = [
    {"config.toml": "", "hooks.json": "{}"},
    {"config.toml": 'model = "gpt-5.5"\napproval_policy = "on-request"\n', "hooks.json": '{"hooks": {}}\n'},
    {
        "config.toml": '# mine\nmodel = "o3"  # good\n\n[features]\n# nothing here\nweb_search_request = true\n\n'
        '[mcp_servers.github]\ncommand = "gh-mcp"\nargs = [\n  "a",  # first\n  "b",\n]\n',
        "hooks.json": '{"hooks": {"PreToolUse": [' + OTHER_HOOK + ", " + OTHER_HOOK + "]}}",
    },
    {
        "config.toml": 'sandbox_mode = "workspace-write"   # careful\r\n[sandbox_workspace_write]\r\nnetwork_access = true\r\n'
    },
    {
        "config.toml": 'notes = """\n[features]\nshell_tool = true\n"""\n\n[projects."/home/ann/a = b"]\ntrust_level = "trusted"',
        "hooks.json": '{\n\t"description": "of ann",\n\t"hooks": {\n\t\t"Stop": []\n\t}\n}',
    },
    {
        "config.toml": '[mcp_servers.unspill]\ncommand = "/old/unspill"\nargs = ["mcp"]\n\n[features]\nshell_tool = true # on\n'
    },
    {"config.toml": 'features.shell_tool = true\nfeatures.hooks = true\n[tui]\ntheme = "x"\n', "hooks.json": ""},
    {
        "config.toml": "[[skills.config]]\npath = '/a'\nenabled = false\n\n\n[[skills.config]]\npath = '/b'\nenabled = true\n[hooks.state.\"/x:pre_tool_use:0:0\"]\ntrusted_hash = 'sha256:0'\n\n\n"
    },
]

GEMINI: Final = [
    {"settings.json": "{}"},
    {"settings.json": '{"security":{"auth":{"selectedType":"oauth-personal"}}}'},
    {
        "settings.json": '{\n  // mine\n  "ui": {"theme": "GitHub"}, // light\n  "hooks": {"BeforeTool": ['
        + OTHER_HOOK
        + "]}\n}\n"
    },
    {
        "settings.json": '{\n    "tools": {\n        "exclude": [\n            "web_fetch" // never\n        ]\n    }\n}\n'
    },
    {
        "settings.json": '{\n\t"mcpServers": {\n\t\t"github": {\n\t\t\t"httpUrl": "https://example.org/mcp"\n\t\t}\n\t}\n}\n'
    },
    {"settings.json": '{\r\n  "hooks": {\r\n    "AfterTool": []\r\n  }\r\n}'},
    {"settings.json": '{"tools":{"exclude":["write_file"]},"mcpServers":{"unspill":{"command":"/old"}}}\n'},
    {
        "settings.json": '{ "general": { "vimMode": true },\n\n\n  "hooks": {\n    "SessionStart": [ { "hooks": [] } ]\n  } }\n'
    },
]

OPENCODE: Final = [
    {"opencode.json": "{}\n"},
    {"opencode.json": '{\n  "$schema": "https://opencode.ai/config.json"\n}\n'},
    {
        "opencode.jsonc": '{\n  // mine\n  "$schema": "https://opencode.ai/config.json",\n  "theme": "system",\n  "permission": {\n    "*": "allow", // quick\n    "bash": "ask",\n  },\n}\n'
    },
    {
        "opencode.jsonc": '{"$schema": "https://opencode.ai/config.json","mcp": {"github": {"type": "remote", "url": "https://example.org/mcp", "enabled": false,},},}'
    },
    {
        "opencode.json": '{\n\t"$schema": "https://opencode.ai/config.json",\n\t"permission": {\n\t\t"edit": "deny"\n\t}\n}'
    },
    {"opencode.json": '{\r\n  "$schema": "https://opencode.ai/config.json",\r\n  "mcp": {}\r\n}\r\n'},
    {
        "opencode.json": '{"$schema": "https://opencode.ai/config.json","mcp":{"unspill":{"type":"local","command":["/old/unspill","mcp"],"enabled":false}}}'
    },
    {"opencode.json": '\n\n  { "$schema": "https://opencode.ai/config.json" }  \n'},
]

QWEN: Final = [
    {"settings.json": "{}"},
    {"settings.json": '{"security":{"auth":{"selectedType":"openai"}},"$version":4}'},
    {"settings.json": '{\n  /* mine */\n  "$version": 4,\n  "ui": {\n    "theme": "Qwen Dark" // dark\n  }\n}\n'},
    {
        "settings.json": '{\n    "$version": 4,\n    "tools": {\n        "exclude": ["web_fetch"]\n    },\n    "mcpServers": {}\n}\n'
    },
    {
        "settings.json": '{\n\t"mcpServers": {\n\t\t"github": {\n\t\t\t"command": "gh-mcp"\n\t\t}\n\t},\n\t"$version": 4\n}\n'
    },
    {"settings.json": '{\r\n  "$version": 4,\r\n  "tools": {\r\n    "approvalMode": "yolo"\r\n  }\r\n}'},
    {
        "settings.json": '{"$version":4,"tools":{"exclude":["edit"]},"mcpServers":{"unspill":{"command":"/old","trust":false}}}'
    },
    {"settings.json": '{ "$version": 4, "general": {},\n\n  "tools": { "exclude": [ ] } }'},
]

CURSOR: Final = [
    {"mcp.json": "{}"},
    {"mcp.json": '{"mcpServers":{}}'},
    {"mcp.json": '{\n  "mcpServers": {\n    "github": {\n      "url": "https://example.org/mcp"\n    }\n  }\n}\n'},
    {"mcp.json": '// mine\n{\n  "mcpServers": {\n    "a": {"command": "a"}, // first\n  },\n}\n'},
    {"mcp.json": '{\n\t"mcpServers": {\n\t\t"a": {"command": "a"}\n\t}\n}'},
    {"mcp.json": '{\r\n  "mcpServers": {\r\n    "a": {"command": "a"}\r\n  }\r\n}\r\n'},
    {"mcp.json": '{"mcpServers":{"unspill":{"command":"/old"},"b":{"command":"b"}}}'},
    {"mcp.json": "  \n"},
]

AIDER: Final = [
    {".aider.conf.yml": ""},
    {".aider.conf.yml": "model: o3\n"},
    {".aider.conf.yml": "# mine\nmodel: o3 # good\nauto-test: true\ntest-cmd: pytest -q\n"},
    {".aider.conf.yml": "suggest-shell-commands: true\n"},
    {".aider.conf.yml": "read:\n  - CONVENTIONS.md\n  - a.md\nlint-cmd: ruff check"},
    {".aider.conf.yml": "model: o3\r\nsuggest-shell-commands:   true\r\ndark-mode: true\r\n"},
    {".aider.conf.yml": "suggest-shell-commands: false\ntest-cmd: make test\n\n\n"},
    {".aider.conf.yml": "alias:\n  - 'fast:gpt'\n\n# the end"},
]

EXISTING: Final = {
    "claude-code": CLAUDE,
    "codex": CODEX,
    "gemini-cli": GEMINI,
    "opencode": OPENCODE,
    "qwen-code": QWEN,
    "cursor": CURSOR,
    "aider": AIDER,
}
