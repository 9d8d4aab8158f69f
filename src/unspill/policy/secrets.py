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


# Of a home directory, by whose they are; the host says which are directories and which are files
_HOME_TOOLS = {
    "shells and interpreters: what was typed": b"""
        .bash_history .sh_history .ksh_history .ash_history .zhistory .zsh_history .histfile
        .local/share/fish/fish_history .local/share/atuin .config/nushell/history.txt .config/nushell/history.sqlite3
        .local/share/powershell/PSReadLine .python_history .node_repl_history .ipython/profile_default/history.sqlite
        .ipython/profile_default/security .irb_history .pry_history .lua_history .gdb_history .Rhistory .psql_history
        .mysql_history .sqlite_history .rediscli_history .duckdb_history .dbshell .mongodb/mongosh .config/pgcli
        .mycli-history .viminfo .local/state/nvim/shada .lesshst .wget-hsts .local/share/recently-used.xbel
        """.split(),
    "SSH, GnuPG and other keys": b"""
        .ssh .gnupg .local/share/gnupg .pki .putty .step .acme.sh .tsh .config/age .globus .Xauthority .ICEauthority
        .dbus-keyrings .cert .vnc .config/tigervnc .android/adbkey
        """.split(),
    "password managers": b"""
        .password-store .config/op .op .config/1Password .config/Bitwarden .local/share/Bitwarden .config/rbw .cache/rbw
        .local/share/rbw .config/gopass .local/share/gopass .lpass .config/lpass .local/share/lpass .config/keepassxc
        .config/keybase .config/kwalletrc .local/share/keyrings .local/share/kwalletd .local/share/python_keyring
        .gnome2/keyrings .config/libsecret .config/goa-1.0
        """.split(),
    "secret stores: Vault, SOPS, Doppler, Infisical, Akeyless": b"""
        .vault-token .config/sops .doppler .infisical .akeyless
        """.split(),
    "git, its hosts, and other version control": b"""
        .git-credentials .gitconfig .config/git .git-credential-cache .cache/git .gcm .gitcookies .config/gh
        .config/glab-cli .config/hub .config/lab .config/tea .hgrc .subversion/auth .bazaar/authentication.conf .cvspass
        .p4tickets .p4enviro .arcrc .rbtools-cookies
        """.split(),
    "netrc, curl, wget, HTTP clients": b"""
        .netrc .curlrc .wgetrc .config/httpie .httpie .config/Postman .config/Insomnia .authinfo .authinfo.gpg
        """.split(),
    "Amazon": b".aws .awsvault .saml2aws .s3cfg".split(),
    "Google": b".config/gcloud .boto .gsutil .bigqueryrc .clasprc.json .config/earthengine".split(),
    "Microsoft": b".azure .IdentityService .local/.IdentityService".split(),
    "other clouds": b"""
        .aliyun .bluemix .cf .civo.json .config/doctl .config/exoscale .config/hcloud .config/linode-cli .config/scw
        .config/upctl.yaml .config/yandex-cloud .oci .openstack .config/openstack .ovh.conf .tccli .vultr-cli.yaml
        """.split(),
    "hosting: Cloudflare, Fly, Netlify, Railway, Vercel and others": b"""
        .fly .config/.wrangler .wrangler .cloudflared .config/netlify .local/share/com.vercel.cli .railway .render
        .supabase .config/planetscale .config/neonctl .config/turso .platformsh .terminus .acquia .ngrok2 .config/ngrok
        .expo .serverlessrc .config/configstore
        """.split(),
    "services: Auth0, Jira, Okta, Salesforce, Slack, Stripe, Twilio and others": b"""
        .config/auth0 .okta .config/.jira .jira.d .sf .sfdx .slack .config/stripe .twilio-cli .config/sanity
        .contentfulrc.json .config/rover .config/algolia .sentryclirc .dogrc .newrelic .config/ggshield
        .semgrep/settings.yml
        """.split(),
    "clusters and containers": b"""
        .kube .config/helm .minikube .talos .config/argocd .rancher .docker .config/containers
        .local/share/containers/storage/secrets .lima/_config .vagrant.d/data
        """.split(),
    "infrastructure: Ansible, Chef, Pulumi, Terraform": b"""
        .ansible/galaxy_token .chef .puppetlabs .pulumi/credentials.json .terraform.d .terraformrc .tofurc .packerconfig
        .circleci .travis .earthly .actrc
        """.split(),
    "packages: npm, pip, RubyGems and others": b"""
        .npmrc .yarnrc .yarnrc.yml .config/yarn .bunfig.toml .config/pnpm/rc .pypirc .config/pip .pip .config/pypoetry
        .config/pdm .config/hatch .local/share/uv/credentials .conda/aau_token .bundle/config .gem/credentials
        .local/share/gem/credentials .cargo/credentials .cargo/credentials.toml .composer/auth.json
        .config/composer/auth.json .nuget/NuGet .config/NuGet .m2/settings.xml .m2/settings-security.xml
        .gradle/gradle.properties .gradle/enterprise .gradle/develocity .sbt/.credentials .ivy2/.credentials
        .config/coursier/credentials.properties .lein/credentials.clj.gpg .hex/hex.config
        .config/dart/pub-credentials.json .pub-cache/credentials.json .conan/.conan.db .conan2/.conan.db
        .conan2/credentials.json .stack/upload/credentials.json .pause .Renviron .jfrog .config/cloudsmith .cloudsmith
        .config/cachix .config/attic .config/systemd
        """.split(),
    "data and models: Databricks, dbt, Hugging Face, Kaggle, Snowflake and others": b"""
        .databrickscfg .databricks .dbt .snowflake .snowsql .config/snowflake .huggingface .cache/huggingface .kaggle
        .config/kaggle .jupyter .local/share/jupyter/runtime .modal.toml .comet.config .mlflow/credentials .config/dvc
        clearml.conf .prefect .ollama/id_ed25519
        """.split(),
    "databases": b"""
        .my.cnf .mylogin.cnf .mysqlsh .pgpass .pg_service.conf .pgadmin .odbc.ini .local/share/DBeaverData
        """.split(),
    "coding agents": b"""
        .claude .claude.json .config/Claude .codex .gemini .qwen .continue .codeium .copilot .config/github-copilot
        .aider .aider.conf.yml .config/amp .local/share/amp .amazonq .local/share/amazon-q .kiro .config/goose
        .local/share/goose .config/opencode .local/share/opencode .config/crush .local/share/crush
        .config/io.datasette.llm .config/aichat .mcp-auth
        """.split(),
    "editors": b"""
        .config/Code .config/Cursor .config/VSCodium .config/Windsurf .cursor .windsurf .vscode-server
        .vscode-server-insiders .cursor-server .config/JetBrains .local/share/JetBrains
        .eclipse/org.eclipse.equinox.security
        """.split(),
    "browsers": b"""
        .mozilla .cache/mozilla .librewolf .waterfox .zen .config/BraveSoftware .config/chromium .config/google-chrome
        .config/google-chrome-beta .config/google-chrome-unstable .config/microsoft-edge .config/microsoft-edge-beta
        .config/microsoft-edge-dev .config/opera .config/vivaldi .config/qutebrowser .local/share/qutebrowser
        .config/epiphany .local/share/epiphany .cache/chromium .cache/google-chrome .var/app snap
        """.split(),
    "mail and chat": b"""
        .thunderbird .config/evolution .local/share/evolution .config/geary .local/share/geary .claws-mail .muttrc .mutt
        .config/mutt .config/neomutt .msmtprc .config/msmtp .mbsyncrc .config/isyncrc .offlineimaprc .config/offlineimap
        .fetchmailrc .getmail .mailrc .config/aerc .config/himalaya .config/Element .config/Signal .config/Slack
        .config/discord .local/share/TelegramDesktop .purple .weechat .config/weechat .irssi .config/hexchat
        .config/Mattermost .config/teams
        """.split(),
    "remote files and desktops": b"""
        .config/rclone .config/remmina .local/share/remmina .config/filezilla .filezilla .lftp .local/share/lftp .davfs2
        .smbcredentials .config/Nextcloud .dropbox .config/syncthing .local/state/syncthing .config/borg .megaCmd
        .gdfuse .config/onedrive
        """.split(),
    "wallets": b"""
        .bitcoin .litecoin .dogecoin .zcash .electrum .ethereum .config/solana .near-credentials .brownie
        .foundry/keystores .sui .aptos .config/Exodus
        """.split(),
}
HOME_SECRETS = tuple(name for names in _HOME_TOOLS.values() for name in names)
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
        .env.override .env.user .env.bak .env.backup .env.old .env.orig .env.save .env~ .env.swp .env.prd .env.live
        .env.vercel .env.sentry-build-plugin
        """.split(),
    "the key to an encrypted `.env.vault`": b".env.keys .env.me".split(),
    "variables that direnv sets": b".envrc .envrc.local .envrc.private".split(),
    "variables of a cloud function": b"""
        .dev.vars .dev.vars.local .dev.vars.production .dev.vars.staging .secret.local
        """.split(),
    "package registry tokens": b"""
        .npmrc .pypirc auth.json .gem-credentials .nuget-credentials pub-credentials.json
        """.split(),
    "passwords for git, curl and others": b"""
        .netrc _netrc .git-credentials .gitcookies .curlrc .wgetrc .authinfo .authinfo.gpg .msmtprc .fetchmailrc
        .mbsyncrc
        """.split(),
    "database passwords": b".pgpass pgpass.conf .my.cnf .mylogin.cnf .pg_service.conf".split(),
    "SSH private keys": b"""
        id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk id_xmss identity deploy_key ssh_host_rsa_key
        ssh_host_ecdsa_key ssh_host_ed25519_key ssh_host_dsa_key id_rsa.pem id_rsa.key id_ed25519.pem deploy_rsa
        github_rsa
        """.split(),
    "private keys": b"""
        privkey.pem private.pem private.key private_key.pem private-key.pem key.pem server.key tls.key ca.key client.key
        secring.gpg private.asc age.key age-key.txt .age-key.txt private.pgp privatekey.pem privateKey.pem
        private_key.der server-key.pem client-key.pem ca-key.pem tls-key.pem ssl.key signing.key signing-key.pem jwt.key
        jwtRS256.key jwt-private.pem jwt_private.pem
        """.split(),
    "release signing keys and their passwords": b"""
        keystore.jks release.keystore release.jks upload-keystore.jks upload.keystore upload.jks keystore.p12
        certificate.p12 Certificates.p12 keystore.properties key.properties signing.properties
        play-store-credentials.json google-play-key.json api_key.json
        """.split(),
    "cloud account credentials": b"""
        credentials credentials.json credentials.yml credentials.yaml credentials.toml credentials.ini credentials.csv
        credentials.txt rootkey.csv accessKeys.csv client_secret.json client_secrets.json token.json token.pickle
        application_default_credentials.json google-credentials.json google_credentials.json gcp-credentials.json
        gcp-key.json gcloud-key.json firebase-adminsdk.json service-account.json service_account.json
        serviceaccount.json serviceAccount.json service-account-key.json service_account_key.json serviceAccountKey.json
        azureauth.json .s3cfg .boto .passwd-s3fs rclone.conf .databrickscfg .clasprc.json aws-credentials
        aws_credentials aws-credentials.json gcp-service-account.json gcp_credentials.json gcs-credentials.json
        firebase-service-account.json firebase-credentials.json firebase-key.json azure-credentials.json .saml2aws
        clouds.yaml clouds.yml secure.yaml openrc.sh kaggle.json .modal.toml
        """.split(),
    "access to a cluster, a registry or a service": b"""
        kubeconfig kubeconfig.yaml kubeconfig.yml kubeconfig.json .kubeconfig .dockercfg .dockerconfigjson .terraformrc
        terraform.rc .tofurc ngrok.yml .sentryclirc sentry.properties ovh.conf .contentfulrc.json hubspot.config.yml
        """.split(),
    # Not terraform.tfstate: without it the tool would not stop but make everything a second time
    "Terraform variables, often with secrets": b"""
        terraform.tfvars terraform.tfvars.json secret.tfvars secrets.tfvars secret.auto.tfvars secrets.auto.tfvars
        """.split(),
    "the key to a vault of other secrets": b"""
        .vault-token .vault_pass .vault_pass.txt .vault-pass .vault_password .vault-password vault_password.txt
        vault_pass.txt vault-password master.key .master.key
        """.split(),
    "files that are named as secrets": b"""
        secrets.json secrets.yaml secrets.yml secrets.toml secrets.ini secrets.env secrets.properties secrets.txt
        secret.json secret.yaml secret.yml secret.txt .secret .secrets .secrets.json .secrets.yaml .secrets.yml
        .secrets.toml .secrets.env .env.secret.local secrets.local.yaml secrets.local.json secrets.dec.yaml
        secrets.yaml.dec secret.env secret.key secret_key.txt secret_key_base.txt passwords.txt password.txt
        access_token.txt api_key.txt apikey.txt api-key.txt
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
    above = posixpath.join(home, b"")
    return tuple(above + name for name in HOME_SECRETS)


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
