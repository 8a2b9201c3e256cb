package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

const (
	// etcdStartTimeout bounds the wait for a leader. One member elects itself
	// in about a second; the rest is room for a busy machine.
	etcdStartTimeout = 60 * time.Second

	// etcdProgressInterval is how often an idle watch learns the current
	// revision. The API server needs it to answer consistent lists from its
	// cache; etcd's own default of ten minutes would be a long wait.
	etcdProgressInterval = 5 * time.Second

	// etcdQuotaBytes keeps a large run from ending in a read-only store.
	etcdQuotaBytes = 8 << 30
)

type etcdOptions struct {
	dataDir    string
	clientPort uint16
	peerPort   uint16
	logLevel   string
}

// newEtcdCommand returns a command that runs a single etcd member on loopback,
// without TLS and without fsync: fast, and good for nothing that must survive
// a power cut. A killed process loses nothing.
func newEtcdCommand() *cobra.Command {
	var o etcdOptions
	cmd := &cobra.Command{
		Use:           "etcd",
		Short:         "Run a single etcd member on 127.0.0.1",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true, // cli.Run prints the error
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return runEtcd(ctx, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.dataDir, "data-dir", "", "folder of the store; made if missing (required)")
	flags.Uint16Var(&o.clientPort, "client-port", 2379, "port for clients, /health and /metrics")
	flags.Uint16Var(&o.peerPort, "peer-port", 2380, "port for peers; never used, but etcd insists on one")
	flags.StringVar(&o.logLevel, "log-level", "warn", "debug, info, warn or error")
	if err := cmd.MarkFlagRequired("data-dir"); err != nil {
		panic(err) // the flag is defined three lines above
	}
	return cmd
}

// runEtcd serves until ctx is done, and then stops in order.
func runEtcd(ctx context.Context, o etcdOptions) error {
	e, err := embed.StartEtcd(etcdConfig(o))
	if err != nil {
		return fmt.Errorf("start etcd in %s on port %d: %w", o.dataDir, o.clientPort, err)
	}
	defer e.Close()

	ready := e.Server.ReadyNotify()
	starting := time.After(etcdStartTimeout)
	for {
		select {
		case <-ready:
			ready, starting = nil, nil
		case <-starting:
			return fmt.Errorf("etcd had no leader after %s; is the machine overloaded?", etcdStartTimeout)
		case err := <-e.Err():
			return fmt.Errorf("serve etcd: %w", err)
		case <-e.Server.StopNotify():
			return errors.New("etcd stopped by itself; its log above tells why")
		case <-ctx.Done():
			return nil
		}
	}
}

func etcdConfig(o etcdOptions) *embed.Config {
	client, peer := loopback(o.clientPort), loopback(o.peerPort)

	cfg := embed.NewConfig()
	cfg.Name = "control-plane" // etcd warns about its default name
	cfg.Dir = o.dataDir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.LogLevel = o.logLevel
	cfg.UnsafeNoFsync = true
	cfg.QuotaBackendBytes = etcdQuotaBytes
	cfg.WatchProgressNotifyInterval = etcdProgressInterval
	// Zero, which an embedded config starts with, reports every request as slow.
	cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	return cfg
}

func loopback(port uint16) []url.URL {
	return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}}
}
