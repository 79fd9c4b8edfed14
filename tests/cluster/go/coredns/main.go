// The cluster's DNS: CoreDNS with the plugins that a cluster without a way out needs. The full set
// brings the clients of a dozen clouds, which take longer to build than Kubernetes' own scheduler.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which a query passes the plugins.
	dnsserver.Directives = []string{"ready", "errors", "cache", "template", "kubernetes"}
	coremain.Run()
}
