# SPDX-License-Identifier: Apache-2.0
"""Which files and directories are secrets: of a home directory, of the system, and of a project. Names only, no disk.

Those of the home directory and of the system are masked wherever a plan would show them, and none can be a root. View
`sealed` shows hardly any of them; view `host` needs the whole table.

Those of a project are files with exactly these names: absent inside a sandbox, and held at an apply. In the top
directory of a root and in the directories that the policy names that goes for every name, deeper down for what a search
has found. Examples and templates have other names (`.env.example`), so they are never meant. Names are compared byte by
byte: the kernel puts no overlay over a directory that ignores case.
"""

from __future__ import annotations

import posixpath

from unspill.policy.paths import lies_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import Secrets


# Of a home directory; the host says which are directories and which are files
HOME_SECRETS = tuple(
    b"""
    .aws .azure .bash_history .bundle/config .cargo/credentials .cargo/credentials.toml .claude .claude.json .codex
    .composer/auth.json .conda/aau_token .config/BraveSoftware .config/Bitwarden .config/Code .config/Cursor
    .config/Element .config/Signal .config/Slack .config/VSCodium .config/chromium .config/composer/auth.json
    .config/configstore .config/containers .config/discord .config/doctl .config/evolution .config/gcloud .config/gh
    .config/github-copilot .config/glab-cli .config/google-chrome .config/google-chrome-beta .config/helm .config/hub
    .config/keybase .config/kwalletrc .config/libsecret .config/microsoft-edge .config/op .config/opera .config/pip
    .config/pypoetry .config/rclone .config/remmina .config/sops .config/stripe .config/systemd .config/vivaldi
    .config/yarn .databrickscfg .docker .dbus-keyrings .electrum .ethereum .fly .gem/credentials .gemini
    .git-credentials .gitconfig .config/git .gnome2/keyrings .gnupg .gradle/gradle.properties .huggingface
    .cache/huggingface .cache/mozilla .ipython/profile_default/history.sqlite .kaggle .kube .local/share/Bitwarden
    .local/share/TelegramDesktop .local/share/evolution .local/share/gnupg .local/share/keyrings .local/share/kwalletd
    .local/share/python_keyring .local/share/recently-used.xbel .local/share/uv/credentials .m2/settings-security.xml
    .m2/settings.xml .mozilla .my.cnf .mylogin.cnf .mysql_history .netrc .node_repl_history .npmrc .nuget/NuGet .oci
    .openstack .password-store .pgpass .pki .psql_history .pulumi/credentials.json .pypirc .python_history
    .rediscli_history .s3cfg .sqlite_history .ssh .subversion/auth .terraform.d .terraformrc .thunderbird .vault-token
    .var/app .viminfo .vscode-server .wget-hsts .wgetrc .yarnrc .yarnrc.yml .zhistory .zsh_history snap
    """.split()
)
# Of other programs and other people, visible in view `host` if nothing hides them
SYSTEM_SECRETS = (b"/snap", b"/var/backups", b"/var/lib", b"/var/log", b"/var/mail", b"/var/spool")
# Only a caller with uid 0 could read these at all
ROOT_SECRETS = tuple(
    b"""
    /etc/NetworkManager/system-connections /etc/gshadow /etc/gshadow- /etc/krb5.keytab /etc/shadow /etc/shadow- /etc/ssh
    /etc/ssl/private /etc/sudoers /etc/sudoers.d /etc/wireguard
    """.split()
)
# Of a project: why, and the exact names
PROJECT_SECRETS = {
    "environment variables, often with passwords and tokens": b"""
        .env .env.local .env.dev .env.dev.local .env.development .env.development.local .env.prod .env.prod.local
        .env.production .env.production.local .env.stage .env.staging .env.staging.local .env.qa .env.uat .env.preview
        .env.test .env.test.local .env.testing .env.ci .env.docker .env.remote .env.private .env.secret .env.secrets
        .env.override .env.user .env.bak .env.backup .env.old .env.orig .env.save .env~ .env.swp
        """.split(),
    "the key to an encrypted `.env.vault`": b".env.keys .env.me".split(),
    "variables that direnv sets": b".envrc .envrc.local .envrc.private".split(),
    "variables of a cloud function": b".dev.vars .dev.vars.production .secret.local".split(),
    "package registry tokens": b".npmrc .pypirc auth.json .gem-credentials .nuget-credentials".split(),
    "passwords for git, curl and others": b".netrc _netrc .git-credentials .gitcookies .curlrc .wgetrc".split(),
    "database passwords": b".pgpass pgpass.conf .my.cnf .mylogin.cnf".split(),
    "SSH private keys": b"""
        id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk id_xmss identity deploy_key ssh_host_rsa_key
        ssh_host_ecdsa_key ssh_host_ed25519_key
        """.split(),
    "private keys": b"""
        privkey.pem private.pem private.key private_key.pem private-key.pem key.pem server.key tls.key ca.key client.key
        secring.gpg private.asc age.key age-key.txt .age-key.txt
        """.split(),
    "release signing keys and their passwords": b"""
        keystore.jks release.keystore release.jks upload-keystore.jks keystore.p12 keystore.properties key.properties
        signing.properties
        """.split(),
    "cloud account credentials": b"""
        credentials credentials.json credentials.yml credentials.yaml credentials.toml credentials.ini credentials.csv
        credentials.txt rootkey.csv accessKeys.csv client_secret.json client_secrets.json token.json token.pickle
        application_default_credentials.json google-credentials.json google_credentials.json gcp-credentials.json
        gcp-key.json gcloud-key.json firebase-adminsdk.json service-account.json service_account.json
        serviceaccount.json serviceAccount.json service-account-key.json service_account_key.json serviceAccountKey.json
        azureauth.json .s3cfg .boto .passwd-s3fs rclone.conf .databrickscfg
        """.split(),
    "access to a cluster, a registry or a service": b"""
        kubeconfig kubeconfig.yaml kubeconfig.yml kubeconfig.json .kubeconfig .dockercfg .dockerconfigjson .terraformrc
        terraform.rc ngrok.yml .sentryclirc
        """.split(),
    # Not terraform.tfstate: without it the tool would not stop but make everything a second time
    "Terraform variables, often with secrets": b"""
        terraform.tfvars terraform.tfvars.json secret.tfvars secrets.tfvars
        """.split(),
    "the key to a vault of other secrets": b"""
        .vault-token .vault_pass .vault_pass.txt .vault-pass vault_pass.txt vault-password master.key .master.key
        """.split(),
    "files that are named as secrets": b"""
        secrets.json secrets.yaml secrets.yml secrets.toml secrets.ini secrets.env secrets.properties secrets.txt
        secret.json secret.yaml secret.yml secret.txt .secret .secrets .secrets.json .secrets.yaml .secrets.yml
        .secrets.toml passwords.txt password.txt api_key.txt apikey.txt api-key.txt
        """.split(),
    "passwords of web server users": b".htpasswd .htdigest".split(),
}
# Not searched: packages that others wrote, and what version control keeps under names of its own
NOT_SEARCHED = frozenset(b"node_modules site-packages .git .hg .jj .svn".split())
SECRET_NAMES = tuple(sorted(name for names in PROJECT_SECRETS.values() for name in names))

_IN_HOME = frozenset(HOME_SECRETS)


def find_secret(path: bytes, home: bytes) -> bytes | None:
    """Return the secret of the home directory that `path` is or lies in."""
    if not lies_beneath(path, home):
        return None
    end = len(home)
    while end < len(path):
        end = path.find(b"/", end + 1)
        end = len(path) if end < 0 else end
        if path[len(home) + 1 : end] in _IN_HOME:
            return path[:end]
    return None


def home_secrets(home: bytes) -> tuple[bytes, ...]:
    """Return what no sandbox sees of a home directory unless the person's policy names it."""
    return tuple(posixpath.join(home, name) for name in HOME_SECRETS)


def secret_paths(home: bytes, uid: int) -> tuple[bytes, ...]:
    """Return all that a plan masks where it would show it, directories and files alike, if it exists."""
    return (*home_secrets(home), *SYSTEM_SECRETS, *(ROOT_SECRETS if uid == 0 else ()))


def masked_names(secrets: Secrets) -> tuple[bytes, ...]:
    """Return the names that a policy masks, sorted; none where it masks nothing."""
    if not secrets.mask:
        return ()
    return tuple(sorted({*SECRET_NAMES, *secrets.names})) if secrets.names else SECRET_NAMES


def revealed_names(revealed: tuple[bytes, ...], project: bytes, directory: bytes) -> frozenset[bytes]:
    """Return the names in a directory that are revealed. Paths are absolute, or relative to the project."""
    paths = (posixpath.normpath(posixpath.join(project, path)) for path in revealed)
    return frozenset(name for above, name in map(posixpath.split, paths) if above == directory)
