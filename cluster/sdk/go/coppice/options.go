package coppice

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"coppice.dev/sdk/verify"
)

// Options are the settings of a client.
type Options struct {
	// Endpoints are where coordinators listen: host:port, http://host:port or https://host:port. The
	// client leaves out coordinators that are dead.
	Endpoints []string
	// Trust is the ledger's public key. Commits and reads are believed only by their proofs.
	Trust *verify.VKey
	// Unverified makes a client without Trust. It believes everything that a coordinator says.
	Unverified bool
	// Memory is what another client remembered of the ledger (Client.Memory), so that time does not
	// go back from one process to the next. It is nil at first.
	Memory *Memory
	// TLS is nil for a plain connection, as to `coppice dev`.
	TLS *TLS
	// AttemptTimeout bounds one attempt, and the wait for the next message of a stream: 30 s by
	// default.
	AttemptTimeout time.Duration
	// Patience is how long a call is repeated while the ledger is unavailable: 5 s by default.
	Patience time.Duration
}

// TLS says whom a client trusts to be the ledger's coordinators, and which certificate it shows.
// All names are of files in PEM. Once changed files form a valid whole, the next call opens another
// connection. Calls and streams that are under way end on the old one.
type TLS struct {
	// CA has the authorities that may have issued the coordinators' certificates.
	CA string
	// Certificate and Key are the client's own, or empty.
	Certificate, Key string
	// AnyServer accepts each server that the authority named for the host. Without it, the server's
	// certificate must state the role of a coordinator: authorities of a cluster sign certificates of
	// readers as well, and these may name any host.
	AnyServer bool
}

const (
	defaultAttempt  = 30 * time.Second
	defaultPatience = 5 * time.Second
	endpointsMax    = 16
)

func (o *Options) check() error {
	switch {
	case len(o.Endpoints) == 0 || len(o.Endpoints) > endpointsMax:
		return fmt.Errorf("coppice: a client has 1 to %d endpoints", endpointsMax)
	case o.Trust == nil && !o.Unverified:
		return errors.New("coppice: a client has the ledger's key (Options.Trust), or says Unverified")
	case o.Trust != nil && o.Unverified:
		return errors.New("coppice: a client that has the ledger's key verifies")
	case o.Memory != nil && o.Trust == nil:
		return errors.New("coppice: a memory is of a client that has the ledger's key")
	case o.AttemptTimeout < 0 || o.Patience < 0:
		return errors.New("coppice: a time limit is negative")
	}
	return nil
}

// parseEndpoint gives host:port, for a connection with or without TLS.
func parseEndpoint(endpoint string, secure bool) (string, error) {
	address := endpoint
	if strings.Contains(endpoint, "://") {
		parsed, err := url.Parse(endpoint)
		switch {
		case err != nil || parsed.Path != "" && parsed.Path != "/" || parsed.RawQuery != "" || parsed.User != nil:
			return "", fmt.Errorf("coppice: %q is no endpoint: write http://HOST:PORT", endpoint)
		case parsed.Scheme != "http" && parsed.Scheme != "https":
			return "", fmt.Errorf("coppice: %q: only http:// and https:// are supported", endpoint)
		case (parsed.Scheme == "https") != secure:
			return "", fmt.Errorf("coppice: %q: https:// needs Options.TLS, and http:// has none", endpoint)
		}
		address = parsed.Host
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("coppice: %q is no endpoint: write HOST:PORT", endpoint)
	}
	return address, nil
}
