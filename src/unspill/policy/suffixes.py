# SPDX-License-Identifier: Apache-2.0
"""Names below which anybody can have a host: a star must not stand there.

Not the whole public suffix list, which is larger than unspill and changes every week: every single label, the
registries' second levels under the countries, and the common hosting domains. Exact hosts below them can be allowed.
"""

from __future__ import annotations

# Under a country's two letters these are registries in nearly every country that has them.
_SECOND_LEVELS = frozenset(
    """
    ac asn biz co com ed edu firm gen go gob gouv gov govt gv ind info int lg ltd mil mod muni name ne net nhs
    nic nom or org plc police pro res sch school tm
    """.split()
)

_HOSTING = frozenset(
    """
    akamai.net akamaihd.net akamaized.net amplifyapp.com appspot.com azureedge.net azurefd.net azurewebsites.net
    b-cdn.net backblazeb2.com bitbucket.io blogspot.com br.com cdn77.org cloudapp.net cloudflare.net
    cloudflarestorage.com cloudfront.net cloudfunctions.net cn.com codeberg.page codesandbox.io csb.app ddns.net
    ddnss.de dedyn.io deno.dev deno.net devtunnels.ms digitaloceanspaces.com duckdns.org dyndns.org dynv6.net
    edgekey.net edgesuite.net elasticbeanstalk.com eu.com eu.org fastly.net fastlylb.net firebaseapp.com
    firebaseio.com fly.dev freeddns.org gb.net ghost.io gitbook.io github.dev github.io githubpreview.dev
    gitlab.io gitpod.io glitch.me global.ssl.fastly.net googleusercontent.com gr.com hashnode.dev herokuapp.com
    hf.space hopto.org hu.net in.net jp.net jpn.com koyeb.app kr.com la.net lhr.life linodeobjects.com loca.lt
    localhost.run localtest.me lvh.me mex.com myfritz.net myshopify.com netlify.app netlify.com ngrok-free.app
    ngrok-free.dev ngrok.app ngrok.dev ngrok.io nip.io no-ip.org noip.me now.sh oastify.com onrender.com ovh.net
    pagekite.me pages.dev pipedream.net pythonanywhere.com qc.com r2.dev railway.app readthedocs.io repl.co
    replit.app replit.dev requestcatcher.com ru.com run.app sa.com se.net serveo.net serveousercontent.com
    sourceforge.io sslip.io streamlit.app surge.sh sytes.net traefik.me trafficmanager.net trycloudflare.com
    uk.com uk.net up.railway.app us.com vercel.app vercel.dev web.app webflow.io webhook.site weebly.com
    wixsite.com wordpress.com workers.dev xip.io za.com zapto.org zeabur.app
    """.split()
)

# Providers whose customers have names at any depth below these
_DEEP = ("amazonaws.com", "amazonaws.com.cn", "azure.com", "on.aws", "windows.net")


def is_public_suffix(name: str) -> bool:
    """Tell whether anybody can have a name below this one, which is in lower case and without a trailing dot."""
    labels = name.split(".")
    if len(labels) < 2:
        return True
    if len(labels) == 2 and len(labels[1]) == 2 and labels[0] in _SECOND_LEVELS:
        return True
    return name in _HOSTING or any(name == deep or name.endswith(f".{deep}") for deep in _DEEP)
