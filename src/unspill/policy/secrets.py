# SPDX-License-Identifier: Apache-2.0
"""Where credentials, histories and other people's files lie: masked wherever a plan would show them.

View `sealed` shows hardly any of it; view `host` needs the whole table. Nothing in it can be a root.

MERGED
[project_secrets] Files of a project that are secrets by their exact name: absent inside a sandbox, and held at an apply.

Only files of these names, only in the top directory of a root and in the directories that the policy names. Examples
and templates have other names (`.env.example`), so they are never meant. Names are compared byte by byte: the kernel
puts no overlay over a directory that ignores case. Knows names only, no disk.
"""

from __future__ import annotations

import posixpath

from unspill.model.record import Record
from unspill.policy.paths import lies_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import Secrets


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


class SecretRow(Record):
    """Exact names of files, and why they are secrets."""

    names: tuple[bytes, ...]
    reason: str


ROWS = (
    SecretRow(
        names=(
            *(b".env", b".env.local", b".env.dev", b".env.dev.local", b".env.development", b".env.development.local"),
            *(b".env.prod", b".env.prod.local", b".env.production", b".env.production.local"),
            *(b".env.stage", b".env.staging", b".env.staging.local", b".env.qa", b".env.uat", b".env.preview"),
            *(b".env.test", b".env.test.local", b".env.testing", b".env.ci", b".env.docker", b".env.remote"),
            *(b".env.private", b".env.secret", b".env.secrets", b".env.override", b".env.user"),
            *(b".env.bak", b".env.backup", b".env.old", b".env.orig", b".env.save", b".env~", b".env.swp"),
        ),
        reason="variables of the program, among them its passwords and tokens",
    ),
    SecretRow(names=(b".env.keys", b".env.me"), reason="what an encrypted `.env.vault` is opened with"),
    SecretRow(names=(b".envrc", b".envrc.local", b".envrc.private"), reason="variables that direnv sets"),
    SecretRow(names=(b".dev.vars", b".dev.vars.production", b".secret.local"), reason="variables of a cloud function"),
    SecretRow(
        names=(b".npmrc", b".pypirc", b"auth.json", b".gem-credentials", b".nuget-credentials"),
        reason="tokens of package registries",
    ),
    SecretRow(
        names=(b".netrc", b"_netrc", b".git-credentials", b".gitcookies", b".curlrc", b".wgetrc"),
        reason="passwords that git, curl and others send",
    ),
    SecretRow(names=(b".pgpass", b"pgpass.conf", b".my.cnf", b".mylogin.cnf"), reason="passwords of databases"),
    SecretRow(
        names=(
            *(b"id_rsa", b"id_dsa", b"id_ecdsa", b"id_ecdsa_sk", b"id_ed25519", b"id_ed25519_sk", b"id_xmss"),
            *(b"identity", b"deploy_key", b"ssh_host_rsa_key", b"ssh_host_ecdsa_key", b"ssh_host_ed25519_key"),
        ),
        reason="private keys of SSH",
    ),
    SecretRow(
        names=(
            *(b"privkey.pem", b"private.pem", b"private.key", b"private_key.pem", b"private-key.pem", b"key.pem"),
            *(b"server.key", b"tls.key", b"ca.key", b"client.key", b"secring.gpg", b"private.asc"),
            *(b"age.key", b"age-key.txt", b".age-key.txt"),
        ),
        reason="private keys",
    ),
    SecretRow(
        names=(
            *(b"keystore.jks", b"release.keystore", b"release.jks", b"upload-keystore.jks", b"keystore.p12"),
            *(b"keystore.properties", b"key.properties", b"signing.properties"),
        ),
        reason="keys that releases are signed with, and their passwords",
    ),
    SecretRow(
        names=(
            *(b"credentials", b"credentials.json", b"credentials.yml", b"credentials.yaml", b"credentials.toml"),
            *(b"credentials.ini", b"credentials.csv", b"credentials.txt", b"rootkey.csv", b"accessKeys.csv"),
            *(b"client_secret.json", b"client_secrets.json", b"token.json", b"token.pickle"),
            *(b"application_default_credentials.json", b"google-credentials.json", b"google_credentials.json"),
            *(b"gcp-credentials.json", b"gcp-key.json", b"gcloud-key.json", b"firebase-adminsdk.json"),
            *(b"service-account.json", b"service_account.json", b"serviceaccount.json", b"serviceAccount.json"),
            *(b"service-account-key.json", b"service_account_key.json", b"serviceAccountKey.json"),
            *(b"azureauth.json", b".s3cfg", b".boto", b".passwd-s3fs", b"rclone.conf", b".databrickscfg"),
        ),
        reason="what opens an account in a cloud",
    ),
    SecretRow(
        names=(
            *(b"kubeconfig", b"kubeconfig.yaml", b"kubeconfig.yml", b"kubeconfig.json", b".kubeconfig"),
            *(b".dockercfg", b".dockerconfigjson", b".terraformrc", b"terraform.rc", b"ngrok.yml", b".sentryclirc"),
        ),
        reason="how a tool reaches a cluster, a registry or a service",
    ),
    # Not terraform.tfstate: without it the tool would not stop but make everything a second time
    SecretRow(
        names=(b"terraform.tfvars", b"terraform.tfvars.json", b"secret.tfvars", b"secrets.tfvars"),
        reason="values that Terraform's own advice keeps out of a repository",
    ),
    SecretRow(
        names=(
            *(
                b".vault-token",
                b".vault_pass",
                b".vault_pass.txt",
                b".vault-pass",
                b"vault_pass.txt",
                b"vault-password",
            ),
            *(b"master.key", b".master.key"),
        ),
        reason="what a vault of other secrets is opened with",
    ),
    SecretRow(
        names=(
            *(b"secrets.json", b"secrets.yaml", b"secrets.yml", b"secrets.toml", b"secrets.ini", b"secrets.env"),
            *(b"secrets.properties", b"secrets.txt", b"secret.json", b"secret.yaml", b"secret.yml", b"secret.txt"),
            *(b".secret", b".secrets", b".secrets.json", b".secrets.yaml", b".secrets.yml", b".secrets.toml"),
            *(b"passwords.txt", b"password.txt", b"api_key.txt", b"apikey.txt", b"api-key.txt"),
        ),
        reason="secrets by their own word",
    ),
    SecretRow(names=(b".htpasswd", b".htdigest"), reason="passwords of a web server's users"),
)

NAMES = tuple(sorted(name for row in ROWS for name in row.names))


def masked_names(secrets: Secrets) -> tuple[bytes, ...]:
    """Return the names that a policy masks, sorted; none where it masks nothing."""
    if not secrets.mask:
        return ()
    return tuple(sorted({*NAMES, *secrets.names})) if secrets.names else NAMES


def revealed_names(revealed: tuple[bytes, ...], project: bytes, directory: bytes) -> frozenset[bytes]:
    """Return the names in a directory that are revealed. Paths are absolute, or relative to the project."""
    paths = (posixpath.normpath(posixpath.join(project, path)) for path in revealed)
    return frozenset(name for above, name in map(posixpath.split, paths) if above == directory)
