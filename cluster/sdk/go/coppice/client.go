package coppice

import (
	"context"
	"time"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Stamp names a version, together with the epoch in which it was committed.
type Stamp = verify.Stamp

// Client calls the coordinators of one ledger. Its methods may be called from several goroutines.
type Client struct {
	routes   *routes
	attempt  time.Duration
	patience time.Duration
	// trust is nil for a client that says Unverified.
	trust *trust
}

// New makes a client. It connects with its first call.
func New(options Options) (*Client, error) {
	if err := options.check(); err != nil {
		return nil, err
	}
	c := &Client{attempt: options.AttemptTimeout, patience: options.Patience}
	if c.attempt == 0 {
		c.attempt = defaultAttempt
	}
	if c.patience == 0 {
		c.patience = defaultPatience
	}
	var err error
	if options.Trust != nil {
		if c.trust, err = newTrust(*options.Trust, options.Memory); err != nil {
			return nil, err
		}
	}
	if c.routes, err = newRoutes(&options); err != nil {
		return nil, err
	}
	return c, nil
}

// Close ends all connections, and the calls that are under way.
func (c *Client) Close() error { return c.routes.close() }

// Memory is what the client remembers of the ledger. Give it to the next client (Options.Memory).
func (c *Client) Memory() Memory {
	if c.trust == nil {
		return Memory{}
	}
	return c.trust.memory()
}

// Endpoints are the addresses of the coordinators that the client knows.
func (c *Client) Endpoints() []string { return c.routes.addresses() }

// LearnEndpoints asks the ledger for its coordinators. From then on the client calls those as well.
func (c *Client) LearnEndpoints(ctx context.Context) error {
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, coordinator := range status.Coordinators {
		// An address that this client can't use may be of use to others.
		_ = c.routes.learn(coordinator.Address)
	}
	return nil
}

func stampOf(s *v1.Stamp) Stamp { return Stamp{Epoch: s.GetEpoch(), Version: s.GetVersion()} }

func toStamp(s Stamp) *v1.Stamp { return &v1.Stamp{Epoch: s.Epoch, Version: s.Version} }
