"""`plan`: what would be computed, before anything is. `status`: what has been."""


rule plan:
    run:
        from effstate.planning import plan_text

        print(plan_text(PIPELINE))


rule status:
    run:
        from effstate.planning import status_text

        print(status_text(PIPELINE))
