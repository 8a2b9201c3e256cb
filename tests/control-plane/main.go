// Command control-plane is a Kubernetes control plane in one file for tests on
// loopback. Its first argument chooses the component, the rest are that
// component's own flags:
//
//	control-plane kube-apiserver --etcd-servers=http://127.0.0.1:2379 …
//
// Each component runs as a process of its own, so that a test can kill and
// restart one of them and leave the others alone. They share a file only
// because most of their code is the same: one link instead of four.
package main

import (
	"fmt"
	"io"
	"os"
	_ "time/tzdata" // CronJobs name time zones; the machine may have no zone files

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build info on /metrics
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// exitUsage is the exit code for arguments that name no component.
const exitUsage = 2

// components in the order in which they are started.
var components = []component{
	{"etcd", "the store; see `control-plane etcd --help`", newEtcdCommand},
	{"kube-apiserver", "the API, backed by etcd", apiserver.NewAPIServerCommand},
	{"kube-controller-manager", "the built-in controllers", controllermanager.NewControllerManagerCommand},
	{"kube-scheduler", "binds pods to nodes", func() *cobra.Command { return scheduler.NewSchedulerCommand() }},
}

type component struct {
	name    string
	summary string
	command func() *cobra.Command
}

func main() {
	chosen := chosenComponent(os.Args)
	if chosen == nil {
		usage(os.Stderr)
		os.Exit(exitUsage)
	}
	// client-go builds its user agent from the program's name: the component's
	// name here keeps the four apart in an audit log.
	os.Args = append([]string{chosen.name}, os.Args[2:]...)
	os.Exit(cli.Run(chosen.command()))
}

// chosenComponent returns the component that the first argument names, or nil.
func chosenComponent(args []string) *component {
	if len(args) < 2 {
		return nil
	}
	for i := range components {
		if components[i].name == args[1] {
			return &components[i]
		}
	}
	return nil
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "Usage: control-plane COMPONENT [FLAGS]")
	fmt.Fprintln(w)
	fmt.Fprintln(w, "Runs one component of a Kubernetes control plane until SIGTERM or SIGINT.")
	fmt.Fprintln(w, "`control-plane COMPONENT --help` lists that component's flags.")
	fmt.Fprintln(w)
	fmt.Fprintln(w, "Components:")
	for _, c := range components {
		fmt.Fprintf(w, "  %-24s %s\n", c.name, c.summary)
	}
}
