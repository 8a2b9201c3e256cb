// Command e2e-node runs the Kubernetes project's own end-to-end specs for
// nodes, among them the ones for NoExecute taints, against the cluster of a
// kubeconfig. It takes the flags of the full suite, --ginkgo.* included, and
// exits with a code other than 0 when a spec fails.
package main

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"

	_ "k8s.io/kubernetes/test/e2e/feature" // the labels that specs may carry
	_ "k8s.io/kubernetes/test/e2e/node"    // the specs

	// Hooks that the framework expects to be there.
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/utils/format"
)

// exitUsage is the exit code for arguments that are not flags.
const exitUsage = 2

func main() {
	testing.Init() // the suite wants a *testing.T, and that wants its flags
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "e2e-node: takes flags only, got %q\n", flag.Args())
		os.Exit(exitUsage)
	}
	framework.AfterReadingAllFlags(&framework.TestContext)

	// An ordinary program that holds one test: `go build` makes it, and no
	// testing flag is needed to run it.
	testing.Main(
		func(_, _ string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "E2E", F: e2e.RunE2ETests}},
		nil, nil,
	)
}
