"""A certificate for TLS on this machine: made at start, trusted by whoever is given it, worth nothing elsewhere."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from llmlab.errors import MissingExtra

LIFETIME = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LocalCertificate:
    """A self-signed certificate for 127.0.0.1 and localhost, and its key, in PEM form."""

    certificate: bytes
    key: bytes

    def server_context(self) -> ssl.SSLContext:
        """For the side that answers. The key is on disk only while it is loaded, readable by its owner alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "local.pem"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.certificate + self.key)
            context.load_cert_chain(path)
        return context

    def client_context(self) -> ssl.SSLContext:
        """For the side that asks: trusts this certificate and no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.certificate.decode())
        return context


def make_certificate() -> LocalCertificate:
    """A new one. Raises ``MissingExtra`` when the package ``cryptography`` is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise MissingExtra("only cryptography can make a certificate for TLS: pip install 'llmlab[tls]'") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llmlab on this machine")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + LIFETIME)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    signed = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return LocalCertificate(signed.public_bytes(pem), secret)
