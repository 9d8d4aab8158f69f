# SPDX-License-Identifier: Apache-2.0
"""Where credentials, histories and other people's files lie: masked wherever a plan would show them.

View `sealed` shows hardly any of it; view `host` needs the whole table. Nothing in it can be a root.
"""

from __future__ import annotations

import posixpath

from unspill.policy.paths import lies_beneath

# Directories and files alike: the host says which they are.
SECRETS = (
    b".aws",
    b".azure",
    b".bash_history",
    b".bundle/config",
    b".cargo/credentials",
    b".cargo/credentials.toml",
    b".claude",
    b".claude.json",
    b".codex",
    b".composer/auth.json",
    b".conda/aau_token",
    b".config/BraveSoftware",
    b".config/Bitwarden",
    b".config/Code",
    b".config/Cursor",
    b".config/Element",
    b".config/Signal",
    b".config/Slack",
    b".config/VSCodium",
    b".config/chromium",
    b".config/composer/auth.json",
    b".config/configstore",
    b".config/containers",
    b".config/discord",
    b".config/doctl",
    b".config/evolution",
    b".config/gcloud",
    b".config/gh",
    b".config/github-copilot",
    b".config/glab-cli",
    b".config/google-chrome",
    b".config/google-chrome-beta",
    b".config/helm",
    b".config/hub",
    b".config/keybase",
    b".config/kwalletrc",
    b".config/libsecret",
    b".config/microsoft-edge",
    b".config/op",
    b".config/opera",
    b".config/pip",
    b".config/pypoetry",
    b".config/rclone",
    b".config/remmina",
    b".config/sops",
    b".config/stripe",
    b".config/systemd",
    b".config/vivaldi",
    b".config/yarn",
    b".databrickscfg",
    b".docker",
    b".dbus-keyrings",
    b".electrum",
    b".ethereum",
    b".fly",
    b".gem/credentials",
    b".gemini",
    b".git-credentials",
    b".gitconfig",
    b".config/git",
    b".gnome2/keyrings",
    b".gnupg",
    b".gradle/gradle.properties",
    b".huggingface",
    b".cache/huggingface",
    b".cache/mozilla",
    b".ipython/profile_default/history.sqlite",
    b".kaggle",
    b".kube",
    b".local/share/Bitwarden",
    b".local/share/TelegramDesktop",
    b".local/share/evolution",
    b".local/share/gnupg",
    b".local/share/keyrings",
    b".local/share/kwalletd",
    b".local/share/python_keyring",
    b".local/share/recently-used.xbel",
    b".local/share/uv/credentials",
    b".m2/settings-security.xml",
    b".m2/settings.xml",
    b".mozilla",
    b".my.cnf",
    b".mylogin.cnf",
    b".mysql_history",
    b".netrc",
    b".node_repl_history",
    b".npmrc",
    b".nuget/NuGet",
    b".oci",
    b".openstack",
    b".password-store",
    b".pgpass",
    b".pki",
    b".psql_history",
    b".pulumi/credentials.json",
    b".pypirc",
    b".python_history",
    b".rediscli_history",
    b".s3cfg",
    b".sqlite_history",
    b".ssh",
    b".subversion/auth",
    b".terraform.d",
    b".terraformrc",
    b".thunderbird",
    b".vault-token",
    b".var/app",
    b".viminfo",
    b".vscode-server",
    b".wget-hsts",
    b".wgetrc",
    b".yarnrc",
    b".yarnrc.yml",
    b".zhistory",
    b".zsh_history",
    b"snap",
)

# Of other programs and other people, visible in view `host` if nothing hides them.
SYSTEM_SECRETS = (b"/snap", b"/var/backups", b"/var/lib", b"/var/log", b"/var/mail", b"/var/spool")

# Only a caller with uid 0 could read these at all.
ROOT_SECRETS = (
    b"/etc/NetworkManager/system-connections",
    b"/etc/gshadow",
    b"/etc/gshadow-",
    b"/etc/krb5.keytab",
    b"/etc/shadow",
    b"/etc/shadow-",
    b"/etc/ssh",
    b"/etc/ssl/private",
    b"/etc/sudoers",
    b"/etc/sudoers.d",
    b"/etc/wireguard",
)


_NAMES = frozenset(SECRETS)


def find_secret(path: bytes, home: bytes) -> bytes | None:
    """Return the secret of the home directory that `path` is or lies in."""
    if not lies_beneath(path, home):
        return None
    end = len(home)
    while end < len(path):
        end = path.find(b"/", end + 1)
        end = len(path) if end < 0 else end
        if path[len(home) + 1 : end] in _NAMES:
            return path[:end]
    return None


def home_secrets(home: bytes) -> tuple[bytes, ...]:
    """Return what no sandbox sees of a home directory unless the person's policy names it."""
    return tuple(posixpath.join(home, name) for name in SECRETS)


def secret_paths(home: bytes, uid: int) -> tuple[bytes, ...]:
    """Return all that a plan masks where it would show it, directories and files alike, if it exists."""
    return (*home_secrets(home), *SYSTEM_SECRETS, *(ROOT_SECRETS if uid == 0 else ()))
